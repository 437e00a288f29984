package cluster

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/wait"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

// The user of the lab's BMCs.
const (
	BMCUser     = "admin"
	BMCPassword = "belay-lab"
)

// BMCFault is what is wrong with a BMC.
type BMCFault string

// The faults. Each lasts until another one, or BMCWorks.
const (
	// BMCWorks is no fault.
	BMCWorks BMCFault = "ok"
	// BMCIgnores accepts commands and does not carry them out.
	BMCIgnores BMCFault = "ignore"
	// BMCLies says that the machine is off, also when it is on.
	BMCLies BMCFault = "lie"
	// BMCHangs gives no answer for a minute, or until it is repaired.
	BMCHangs BMCFault = "hang"
	// BMCOffFails answers the command to switch off with an error. The power state is right.
	BMCOffFails BMCFault = "off-fails"
	// BMCDead does not answer at all.
	BMCDead BMCFault = "dead"
)

// BMCFaults are all values of BMCFault.
func BMCFaults() []BMCFault {
	return []BMCFault{BMCWorks, BMCIgnores, BMCLies, BMCOffFails, BMCHangs, BMCDead}
}

// bmcName is the component that is the BMC of a node.
func bmcName(node string) string { return "bmc-" + node }

func (p paths) bmc(node string) string      { return filepath.Join(p.dir(), "bmc", node) }
func (p paths) bmcFault(node string) string { return filepath.Join(p.bmc(node), "fault") }
func (p paths) bmcLog(node string) string   { return filepath.Join(p.bmc(node), "log.jsonl") }

// faultOf is what is wrong with the BMC of a node; empty if nothing ever was.
func (p paths) faultOf(node string) BMCFault {
	content, _ := os.ReadFile(p.bmcFault(node)) // none: it works
	return BMCFault(content)
}

// bmcEmulator is the management controller that ipmi_sim emulates: one without sensors.
const bmcEmulator = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nsel_enable 0x20 1000 0x0a\nmc_enable 0x20\n"

// bmc is the simulated BMC of a node: ipmi_sim of OpenIPMI, which speaks IPMI over LAN. Its chassis control is a command of belay-lab, which switches the
// node off and on for real.
func (s specs) bmc(node string) (proc.Spec, error) {
	program, err := lookPath("ipmi_sim")
	if err != nil {
		return proc.Spec{}, fmt.Errorf("a BMC needs ipmi_sim: run hack/install-packages, or apt-get install openipmi ipmitool fence-agents: %w", err)
	}
	machine, err := nodes.MachineUUID(s.paths.node(node))
	if err != nil {
		return proc.Spec{}, err
	}
	control := fmt.Sprintf("env BELAY_CACHE=%s %s %s --name %s --node %s", s.paths.cache, s.own.path("belay-lab"), ChassisVerb, s.options.Name, node)
	config := fmt.Sprintf(`name "%s"
set_working_mc 0x20
  startlan 1
    addr %s %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid %s
  endlan
  chassis_control "%s"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "%s" "%s" admin 10 none md2 md5 straight
`, node, loopback, s.ports.BMCs[node], guidOf(machine), control, BMCUser, BMCPassword)
	dir := s.paths.bmc(node)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return proc.Spec{}, fmt.Errorf("making the folder of the BMC of %s: %w", node, err)
	}
	for name, content := range map[string]string{"lan.conf": config, "bmc.emu": bmcEmulator} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return proc.Spec{}, fmt.Errorf("writing %s of the BMC of %s: %w", name, node, err)
		}
	}
	return s.component(bmcName(node), program, "-c", filepath.Join(dir, "lan.conf"), "-f", filepath.Join(dir, "bmc.emu"), "-s", dir, "-n"), nil
}

// CanFence reports whether this machine has what BMCs and recovery need.
func CanFence() bool { return len(missingOf(PartRecovery)) == 0 }

// guidOf is a system UUID as IPMI has it: the first three fields have the other byte order.
func guidOf(machine uuid.UUID) string {
	b := machine
	b[0], b[1], b[2], b[3] = b[3], b[2], b[1], b[0]
	b[4], b[5] = b[5], b[4]
	b[6], b[7] = b[7], b[6]
	return hex.EncodeToString(b[:])
}

// startBMCs gives each node its BMC.
func (c *Cluster) startBMCs() error {
	if !c.options.BMC {
		return nil
	}
	for _, node := range c.options.nodeNames() {
		spec, err := c.specs.bmc(node)
		if err != nil {
			return err
		}
		if err := c.launch(spec); err != nil {
			return err
		}
	}
	return nil
}

// FaultBMC breaks the BMC of a node, or repairs it.
func (c *Cluster) FaultBMC(node string, fault BMCFault) error {
	process, err := c.process(bmcName(node))
	if err != nil {
		return fmt.Errorf("node %q has no BMC: start the lab with --bmc or --recovery", node)
	}
	if err := os.WriteFile(c.paths.bmcFault(node), []byte(fault), 0o600); err != nil {
		return fmt.Errorf("breaking the BMC of %s: %w", node, err)
	}
	if fault == BMCDead {
		return process.PowerOff()
	}
	select {
	case <-process.Done():
		spec, err := c.specs.bmc(node)
		if err != nil {
			return err
		}
		return c.launch(spec)
	default:
		return nil
	}
}

// BMC is the address of a node's BMC, empty if the lab has none.
func (c *Cluster) BMC(node string) string {
	if port, ok := c.ports.BMCs[node]; ok {
		return address(port)
	}
	return ""
}

// ChassisVerb is the command of belay-lab that a BMC runs, see Chassis.
const ChassisVerb = "chassis-control"

// BMCRequest is a question to a BMC or a command, as the BMC itself logged it.
type BMCRequest struct {
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	// Request is what ipmi_sim asked of the chassis: "get power", or "set power 0", which has been carried out when it ended without an
	// Error.
	Request string `json:"request"`
	Answer  string `json:"answer,omitempty"`
	Error   string `json:"error,omitempty"`
}

// BMCOff is the Request that switches a machine off.
const BMCOff = "set power 0"

// BMCLog is the log of a node's BMC, in the order in which the requests ended.
func (c *Cluster) BMCLog(node string) ([]BMCRequest, error) {
	content, err := os.ReadFile(c.paths.bmcLog(node))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the log of the BMC of %s: %w", node, err)
	}
	var all []BMCRequest
	for line := range bytes.Lines(content) {
		var request BMCRequest
		if err := json.Unmarshal(line, &request); err != nil {
			return nil, fmt.Errorf("reading the log of the BMC of %s: %w", node, err)
		}
		all = append(all, request)
	}
	return all, nil
}

// logBMC appends to the log of a node's BMC: one line in one write.
func (r *Remote) logBMC(node string, request BMCRequest) error {
	line, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding a request of the BMC of %s: %w", node, err)
	}
	file, err := os.OpenFile(r.paths.bmcLog(node), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of the BMC of %s: %w", node, err)
	}
	_, err = file.Write(append(line, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing the log of the BMC of %s: %w", node, err)
	}
	return nil
}

// Chassis answers ipmi_sim's question for the power, or its command: the arguments are "get power" or "set power 0", and the answer to
// the first is "power:0" or "power:1".
func (r *Remote) Chassis(ctx context.Context, node string, args []string) (string, error) {
	request := BMCRequest{Began: time.Now(), Request: strings.Join(args, " ")}
	answer, err := r.chassis(ctx, node, request.Request)
	request.Answer, request.Ended = answer, time.Now()
	if err != nil {
		request.Error = err.Error()
	}
	return answer, errors.Join(err, r.logBMC(node, request))
}

func (r *Remote) chassis(ctx context.Context, node, request string) (string, error) {
	fault := r.paths.faultOf(node)
	if fault == BMCHangs { // until it is repaired
		err := wait.PollUntilContextCancel(ctx, lookAgain, true, func(context.Context) (bool, error) {
			fault = r.paths.faultOf(node)
			return fault != BMCHangs, nil
		})
		if err != nil {
			return "", fmt.Errorf("the BMC of %s hangs: %w", node, err)
		}
	}
	obeys := fault != BMCIgnores && fault != BMCLies
	switch request {
	case "get power":
		status, err := r.Status(ctx)
		if err != nil {
			return "", err
		}
		if fault == BMCLies || slices.Contains(status.Off, node) {
			return "power:0", nil
		}
		return "power:1", nil
	case BMCOff:
		if fault == BMCOffFails {
			return "", fmt.Errorf("the BMC of %s does not switch off, because of a fault of the lab", node)
		}
		if obeys {
			return "", r.PowerOff(ctx, node)
		}
	case "set power 1":
		if obeys {
			return "", r.PowerOn(ctx, node)
		}
	}
	return "", nil // what a simulated chassis has not, such as a boot device
}

// Freeze stops every process of a node where it stands, as a machine that hangs; Thaw lets it continue.
func (c *Cluster) Freeze(node string) error {
	n := c.Node(node)
	if n == nil || !c.IsOn(node) {
		return fmt.Errorf("the lab has no node %q that is on", node)
	}
	c.mu.Lock()
	if c.frozen == nil {
		c.frozen = map[string]bool{}
	}
	c.frozen[node] = true
	c.mu.Unlock()
	return n.Freeze()
}

// Thaw undoes Freeze.
func (c *Cluster) Thaw(node string) error {
	n := c.Node(node)
	if n == nil || !c.IsOn(node) {
		return fmt.Errorf("the lab has no node %q that is on", node)
	}
	c.mu.Lock()
	delete(c.frozen, node)
	c.mu.Unlock()
	return n.Thaw()
}

// StopAgent stops the kubelet or belay's agent of a node, as systemctl stop kubelet: its machine, its containers and its mounts continue. It stays
// stopped until StartAgent, or until the node boots.
func (c *Cluster) StopAgent(node string) error { return c.tellAgent(node, (*nodes.Node).StopChild) }

// StartAgent undoes StopAgent.
func (c *Cluster) StartAgent(node string) error { return c.tellAgent(node, (*nodes.Node).StartChild) }

func (c *Cluster) tellAgent(node string, tell func(*nodes.Node, string) error) error {
	n := c.Node(node)
	if n == nil || !c.IsOn(node) {
		return fmt.Errorf("the lab has no node %q that is on", node)
	}
	return tell(n, nodes.ChildAgent)
}

// StopAgent stops the agent of a node, see Cluster.StopAgent.
func (r *Remote) StopAgent(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/agent/stop", node, nil)
}

// StartAgent starts the agent of a node again, see Cluster.StartAgent.
func (r *Remote) StartAgent(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/agent/start", node, nil)
}

// Freeze stops every process of a node, see Cluster.Freeze.
func (r *Remote) Freeze(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/freeze", node, nil)
}

// Thaw lets a node continue, see Cluster.Thaw.
func (r *Remote) Thaw(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/thaw", node, nil)
}

// FaultBMC breaks the BMC of a node, see Cluster.FaultBMC.
func (r *Remote) FaultBMC(ctx context.Context, node string, fault BMCFault) error {
	return r.ask(ctx, http.MethodPost, "/bmc/"+string(fault), node, nil)
}

// ParseBMCFault reads the name of a fault.
func ParseBMCFault(name string) (BMCFault, error) {
	for _, fault := range BMCFaults() {
		if name == string(fault) {
			return fault, nil
		}
	}
	return "", usage.Errorf("unknown fault %q: use one of %v", name, BMCFaults())
}
