package preflight

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/testing/wait"
)

// setting is one of the settings in docs/migrate.md: where the page has it, and how it becomes flags.
type setting struct {
	into any
	// flags are the values of --controllers that kube-controller-manager is then started with.
	flags func() []string
}

// settings are the settings of docs/migrate.md by the comment that each begins with. The types are strict: they have the fields of the
// distribution that the page uses, and no other.
func settings() map[string]setting {
	var kubeadm struct {
		APIVersion        string `json:"apiVersion"`
		Kind              string `json:"kind"`
		ControllerManager struct {
			ExtraArgs []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"extraArgs"`
		} `json:"controllerManager"`
	}
	type rancher struct {
		Args []string `json:"kube-controller-manager-arg+"`
	}
	type extraArgs struct {
		Controllers string `json:"controllers"`
	}
	var k3s, rke2 rancher
	var old struct {
		Cluster struct {
			ControllerManager struct {
				ExtraArgs extraArgs `json:"extraArgs"`
			} `json:"controllerManager"`
		} `json:"cluster"`
	}
	var talos struct {
		APIVersion string    `json:"apiVersion"`
		Kind       string    `json:"kind"`
		ExtraArgs  extraArgs `json:"extraArgs"`
	}
	var openshift struct {
		Spec struct {
			UnsupportedConfigOverrides struct {
				ExtendedArguments struct {
					Controllers []string `json:"controllers"`
				} `json:"extendedArguments"`
			} `json:"unsupportedConfigOverrides"`
		} `json:"spec"`
	}
	// appended is the flag of k3s with "+": its own value, then the given one, as a flag of its own.
	appended := func(r *rancher) func() []string {
		return func() []string {
			if len(r.Args) != 1 {
				return nil
			}
			name, value, _ := strings.Cut(r.Args[0], "=")
			if name != "controllers+" {
				return nil
			}
			return []string{"*,-service,-route,-cloud-node-lifecycle", value}
		}
	}
	return map[string]setting{
		"kubeadm: ClusterConfiguration": {&kubeadm, func() []string {
			if kubeadm.APIVersion != "kubeadm.k8s.io/v1beta4" || kubeadm.Kind != "ClusterConfiguration" || len(kubeadm.ControllerManager.ExtraArgs) != 1 ||
				kubeadm.ControllerManager.ExtraArgs[0].Name != "controllers" {
				return nil
			}
			return []string{kubeadm.ControllerManager.ExtraArgs[0].Value}
		}},
		"k3s: /etc/rancher/k3s/config.yaml.d/belay.yaml":   {&k3s, appended(&k3s)},
		"rke2: /etc/rancher/rke2/config.yaml.d/belay.yaml": {&rke2, appended(&rke2)},
		"talos: cluster.controllerManager":                 {&old, func() []string { return []string{"*," + old.Cluster.ControllerManager.ExtraArgs.Controllers} }},
		"talos: KubeControllerManagerConfig":               {&talos, func() []string { return []string{"*," + talos.ExtraArgs.Controllers} }},
		"openshift: kubecontrollermanager/cluster": {&openshift, func() []string {
			return openshift.Spec.UnsupportedConfigOverrides.ExtendedArguments.Controllers
		}},
	}
}

// controllerManager is kube-controller-manager, or "" where it is not built.
func controllerManager() string {
	program := filepath.Join(os.Getenv("BELAY_UPSTREAM_BIN"), "kube-controller-manager")
	if _, err := os.Stat(program); err != nil || !filepath.IsAbs(program) {
		return ""
	}
	return program
}

// startControllerManager starts kube-controller-manager with flags, and returns its output. It ends, because it gets no kubeconfig: that
// it says so shows that it has accepted the flags.
func startControllerManager(t *testing.T, flags ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, controllerManager(), append(flags, "--kubeconfig=/nonexistent")...)
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Fatalf("%v does not end by itself: %v\n%s", flags, ctx.Err(), out)
	}
	return string(out)
}

const accepted = "stat /nonexistent"

var example = regexp.MustCompile("(?s)```yaml\n# ([^\n]+)\n(.*?)```")

// TestMigrationSettings: each setting in docs/migrate.md has the form of its distribution, kube-controller-manager accepts it, and preflight
// finds its attach/detach controller off.
func TestMigrationSettings(t *testing.T) {
	page, err := os.ReadFile("../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	want := settings()
	for _, match := range example.FindAllStringSubmatch(string(page), -1) {
		s, ok := want[match[1]]
		if !ok {
			t.Errorf("%q: no test knows its form", match[1])
			continue
		}
		delete(want, match[1])
		if err := yaml.UnmarshalStrict([]byte(match[2]), s.into); err != nil {
			t.Errorf("%s: %v", match[1], err)
			continue
		}
		command := []string{"kube-controller-manager"}
		for _, value := range s.flags() {
			command = append(command, "--controllers="+value)
		}
		if refusal, err := MayLead(t.Context(), fake.NewClientset(upstreamPod(command...))); refusal != nil || err != nil {
			t.Errorf("%s: %v leaves the controller on: %v, %v", match[1], command, refusal, err)
		}
		if controllerManager() == "" {
			continue
		}
		if out := startControllerManager(t, command[1:]...); !strings.Contains(out, accepted) {
			t.Errorf("%s: kube-controller-manager refuses %v: %s", match[1], command[1:], out)
		}
	}
	for name := range want {
		t.Errorf("docs/migrate.md has no setting %q", name)
	}
}

// TestMigrationFlags: the flags of kube-controller-manager that the page names exist, and a controller that does not exist is refused.
func TestMigrationFlags(t *testing.T) {
	if controllerManager() == "" {
		t.Skip("NOT RUN: needs the programs that `make test` builds")
	}
	page, err := os.ReadFile("../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`--(controllers|attach-detach[a-z-]*|disable-[a-z-]+)`).FindAllString(string(page), -1)
	slices.Sort(flags)
	flags = slices.Compact(flags)
	if len(flags) < 4 {
		t.Fatalf("only %v were found", flags)
	}
	for _, flag := range flags {
		if out := startControllerManager(t, flag+"=*"); strings.Contains(out, "unknown flag") {
			t.Errorf("%s: %s", flag, out)
		}
	}
	if out := startControllerManager(t, "--controllers=*,-persistentvolume-attachdetach-controller"); strings.Contains(out, accepted) {
		t.Errorf("it accepts a controller that does not exist: %s", out)
	}
}
