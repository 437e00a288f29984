package nodes

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/jsonfile"
	"belay.dev/belay/lab/socket"
)

// Kind says what runs the pods of a node.
type Kind string

const (
	// KindKubelet is a real kubelet with containerd and runc.
	KindKubelet Kind = "kubelet"
	// KindBelay is belay's own node agent; containers are plain processes.
	KindBelay Kind = "belay"
)

// Names of the children of a node, as Node.Kill takes them.
const (
	// ChildAgent is the kubelet, or belay's node agent.
	ChildAgent = "agent"
	// ChildDriver is the CSI node driver.
	ChildDriver = "driver"
	// ChildContainerd is the container runtime of the kubelet kind.
	ChildContainerd = "containerd"
)

// Programs are the absolute paths of what a node runs.
type Programs struct {
	// BelayLab is the lab's own program; default: the running executable.
	BelayLab string `json:"belayLab,omitempty"`
	// Ledger is the static program that becomes the lab's container image, /ledger.
	Ledger string `json:"ledger"`
	// Kubelet is needed by the kubelet kind only.
	Kubelet string `json:"kubelet,omitempty"`
}

// Config is all that a node needs to know. The lab writes it to a file, node-init
// and the node agent read it.
type Config struct {
	// Lab and Name are the names of the lab and of this node.
	Lab  string `json:"lab"`
	Name string `json:"name"`
	Kind Kind   `json:"kind"`

	// Dir is the node's folder, its disk: it outlives a power cut. Absolute and short:
	// unix sockets lie below it.
	Dir string `json:"dir"`
	// LabDir is the lab's folder: it is recorded as the holder of changed sysctls, and the nodes' cgroups are named after it.
	LabDir string `json:"labDir"`

	// Kubeconfig holds the credential system:node:<name>.
	Kubeconfig string `json:"kubeconfig"`
	// ClientCAFile is the CA of those who may ask the node's HTTPS server, that is
	// the API server's kubelet client certificate.
	ClientCAFile string `json:"clientCAFile"`
	// Address is the loopback address of the node, which the Node object names, and of its pods; default 127.0.0.1.
	Address string `json:"address,omitempty"`
	// ServingCertFile and ServingKeyFile are for Address.
	ServingCertFile string `json:"servingCertFile"`
	ServingKeyFile  string `json:"servingKeyFile"`
	// KubeletPort serves logs to the API server, at KubeletAddress. The Node names this port at Address.
	KubeletPort int `json:"kubeletPort"`
	// KubeletAddress is a loopback address; default Address. With another one, who asks the node has to be led there from Address.
	KubeletAddress string `json:"kubeletAddress,omitempty"`

	// FabricSocket is where the storage fabric listens. Empty: no CSI driver runs.
	FabricSocket string `json:"fabricSocket,omitempty"`
	// Drivers are the driver names that the CSI node driver serves.
	Drivers []string `json:"drivers,omitempty"`

	Programs Programs `json:"programs"`

	// NodeStatusUpdateFrequency is kubelet's; default 10 s, as upstream's. The
	// kubelet publishes volumesInUse with this tick only.
	NodeStatusUpdateFrequency metav1.Duration `json:"nodeStatusUpdateFrequency,omitzero"`
	// NodeLeaseDuration is how long the node's lease lasts, which is renewed every quarter of it; default 40 s, as upstream's. Whole
	// seconds.
	NodeLeaseDuration metav1.Duration `json:"nodeLeaseDuration,omitzero"`
	// Verbosity is the klog level of kubelet and agent; default 2.
	Verbosity int `json:"verbosity,omitempty"`
	// AgentArgs are flags that the kubelet, or belay's node agent (AgentFlags), is given besides the lab's own.
	AgentArgs []string `json:"agentArgs,omitempty"`
}

// RootDir is the kubelet-like tree: plugins, plugins_registry, pods.
func (c Config) RootDir() string { return filepath.Join(c.Dir, "root") }

// FUSEDir is where the CSI node driver mounts the fabric, inside the node only.
func (c Config) FUSEDir() string { return filepath.Join(c.Dir, "fuse") }

// LogDir holds one file per child.
func (c Config) LogDir() string { return filepath.Join(c.Dir, "log") }

// LogOf is where a child writes to while the node runs.
func (c Config) LogOf(child string) string { return filepath.Join(c.LogDir(), child+".log") }

// Children are the names of the children that a node of this kind has.
func (c Config) Children() []string {
	names := []string{ChildAgent}
	if c.Kind == KindKubelet {
		names = append(names, ChildContainerd)
	}
	if c.FabricSocket != "" {
		names = append(names, ChildDriver)
	}
	return names
}

// ControlSocket is where node-init listens.
func (c Config) ControlSocket() string { return filepath.Join(c.Dir, "init.sock") }

// Cgroup is the name of the node's cgroup in each hierarchy. The folder distinguishes
// labs: under two cache folders there may be two of one name.
func (c Config) Cgroup() string {
	return cgroupPrefix + c.Lab + "-" + folderKey(c.LabDir) + "-" + c.Name
}

// folderKey is a lab's folder in a few characters.
func folderKey(labDir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(labDir)))
	return hex.EncodeToString(sum[:4])
}

// withDefaults fills what may be left out.
func (c Config) withDefaults() (Config, error) {
	if c.Programs.BelayLab == "" {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("find the lab's own program: %w", err)
		}
		c.Programs.BelayLab = self
	}
	if c.NodeStatusUpdateFrequency.Duration == 0 {
		c.NodeStatusUpdateFrequency.Duration = 10 * time.Second
	}
	if c.NodeLeaseDuration.Duration == 0 {
		c.NodeLeaseDuration.Duration = leaseDuration
	}
	if c.Verbosity == 0 {
		c.Verbosity = 2
	}
	c.Address = cmp.Or(c.Address, loopbackIP)
	c.KubeletAddress = cmp.Or(c.KubeletAddress, c.Address)
	return c, c.validate()
}

func (c Config) validate() error {
	var problems []error
	for field, value := range map[string]string{
		"lab": c.Lab, "name": c.Name, "kubeconfig": c.Kubeconfig, "servingCertFile": c.ServingCertFile,
		"servingKeyFile": c.ServingKeyFile, "clientCAFile": c.ClientCAFile, "programs.ledger": c.Programs.Ledger,
	} {
		if value == "" {
			problems = append(problems, fmt.Errorf("%s is empty", field))
		}
	}
	for field, path := range map[string]string{"dir": c.Dir, "labDir": c.LabDir} {
		if !filepath.IsAbs(path) {
			problems = append(problems, fmt.Errorf("%s %q is not an absolute path", field, path))
		}
		if strings.ContainsAny(path, ",:\\") {
			problems = append(problems, fmt.Errorf("%s %q holds a character that overlay mounts cannot have: "+
				"put the cache folder (BELAY_CACHE) at a path without , : and \\", field, path))
		}
	}
	if c.Kind != KindKubelet && c.Kind != KindBelay {
		problems = append(problems, fmt.Errorf("kind %q is neither %q nor %q", c.Kind, KindKubelet, KindBelay))
	}
	if c.Kind == KindKubelet && c.Programs.Kubelet == "" {
		problems = append(problems, errors.New("programs.kubelet is empty"))
	}
	if c.KubeletPort == 0 {
		problems = append(problems, errors.New("kubeletPort is 0"))
	}
	for _, driver := range c.Drivers {
		path := filepath.Join(c.RootDir(), "plugins_registry", driver+"-reg.sock")
		if len(path) > socket.MaxPath {
			problems = append(problems, fmt.Errorf(
				"socket path %s has %d bytes, at most %d work: put the cache folder (BELAY_CACHE) at a shorter path",
				path, len(path), socket.MaxPath))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("configuration of node %q: %w", c.Name, err)
	}
	return nil
}

// WriteConfig stores the configuration for node-init.
func WriteConfig(file string, c Config) error {
	if err := jsonfile.Write(file, c); err != nil {
		return fmt.Errorf("write configuration of node %s: %w", c.Name, err)
	}
	return nil
}

// ReadConfig reads what WriteConfig wrote, fills the defaults and checks it.
func ReadConfig(file string) (Config, error) {
	var c Config
	if err := jsonfile.Read(file, &c); err != nil {
		return Config{}, fmt.Errorf("read node configuration: %w", err)
	}
	return c.withDefaults()
}
