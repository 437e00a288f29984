package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// replacement is one section of docs/from-kubectl.md.
type replacement struct{ title, old, use string }

// replacements reads the sections of the page.
func replacements(t *testing.T) []replacement {
	t.Helper()
	page, err := os.ReadFile("../../docs/from-kubectl.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []replacement
	for _, found := range regexp.MustCompile("(?s)\n## ([^\n]+)\n\n```sh\n# instead of\n(.*?)# use\n(.*?)```\n").FindAllStringSubmatch(string(page), -1) {
		all = append(all, replacement{found[1], found[2], found[3]})
	}
	if n := strings.Count(string(page), "\n## "); n != len(all) {
		t.Fatalf("%d of the %d sections have commands", len(all), n)
	}
	return all
}

// guides are the commands that guides give, each in one section of the page.
var guides = []string{
	"kubectl get volumeattachment -o wide", "kubectl describe volumeattachment ", "| jq '.items[] | select(.spec.source.persistentVolumeName==",
	"-c csi-attacher --tail=100", "-c ebs-plugin --tail=100", "aws ec2 describe-volumes --volume-ids $PV_HANDLE", "kubectl describe pod ",
	"kubectl delete volumeattachment ", `kubectl patch volumeattachment $VA -p '{"metadata":{"finalizers":[]}}' --type=merge`, "kubectl delete node ",
}

// answers are what the command of a section has to show of a volume whose node has lost its power: NODE, POD, PV and HANDLE are replaced.
var answers = map[string][]string{
	"What is attached where?":                     {"NODE", "PV"},
	"What is wrong with a VolumeAttachment?":      {"node NODE", "POD"},
	"Which node has the volume?":                  {"node NODE", "POD"},
	"What did the attacher do?":                   {"node NODE", "FailedAttachVolume"},
	"What did the driver do?":                     {"node NODE", "attach requested", "is attached to node NODE"},
	"Does the storage agree?":                     {`"handle": "HANDLE"`, `"name": "NODE"`},
	"Why does the pod stay in ContainerCreating?": {"BLOCKED", "node NODE", "Next"},
	"Remove the finalizer of a VolumeAttachment":  {"NODE"},
	"Delete a VolumeAttachment":                   {"NODE"},
	"The node has crashed, and its pod moved":     {"NODE"},
}

// TestFromKubectl runs each command of docs/from-kubectl.md: those of guides, and those of kubectl belay that replace them, which have
// to show what is wrong. The lab has no AWS, and its components are no pods: it has equivalents for the lines that need them.
func TestFromKubectl(t *testing.T) {
	all := replacements(t)
	for _, command := range guides {
		n := 0
		for _, r := range all {
			n += strings.Count(r.old, command)
		}
		if n != 1 {
			t.Errorf("%q is in %d sections of the page, want one", command, n)
		}
	}
	scene := labtest.Open(t, cluster.Options{
		Name: "e2e-from-kubectl", Nodes: 2, NodeKind: cluster.NodeKindBelay, Plane: cluster.PlaneBelay,
		Drivers: []string{labdisk.DriverDisk}, NodeMonitorGrace: 16 * time.Second,
	})
	s := &labtest.Stuck{T: t, Scene: scene, Name: "guide", Began: time.Now()}
	const node = labtest.Holding
	s.Hold(node, scenario.StorageClass)
	if err := scene.Cluster.PowerOff(node); err != nil {
		t.Fatal(err)
	}
	labtest.Until(t, 5*time.Minute, node+" to be taken for dead", func() error {
		n, err := scene.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil || kube.Ready(n) {
			return fmt.Errorf("%s is Ready (%w)", node, err)
		}
		return nil
	})
	s.Wait()
	s.Hears("Multi-Attach error")
	sh := newShell(t, s, node)
	for _, r := range all {
		t.Run(r.title, func(t *testing.T) {
			shown := sh.run(t, r.use, true)
			for _, part := range answers[r.title] {
				if part = sh.names.Replace(part); !strings.Contains(shown, part) {
					t.Errorf("the answer does not have %q:\n%s", part, shown)
				}
			}
			if len(answers[r.title]) == 0 {
				t.Error("the test does not know what the answer has to show")
			}
			t.Logf("%s\n%s\n%s\n%s", r.use, shown, r.old, sh.run(t, r.old, false))
		})
	}
}

// shell runs lines of the page.
type shell struct {
	environment []string
	names       *strings.Replacer
	// equivalents are the lab's lines for those that it cannot run.
	equivalents map[string]string
}

func newShell(t *testing.T, s *labtest.Stuck, node string) *shell {
	t.Helper()
	lab := s.Scene.Cluster
	plugin, err := cluster.Program("kubectl-belay")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	calls, err := lab.Fabric().Calls(t.Context(), s.Began)
	if err != nil {
		t.Fatal(err)
	}
	attachments, err := lab.Fabric().Attachments(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, mode os.FileMode, lines ...any) string {
		var text strings.Builder
		for _, line := range lines {
			if word, ok := line.(string); ok {
				text.WriteString(word)
			} else if err := json.NewEncoder(&text).Encode(line); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text.String()), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// The storage's own status, one attachment a line: `aws ec2 describe-volumes --volume-ids HANDLE` fails without one.
	status := write("attachments", 0o600, lines(attachments)...)
	write("aws", 0o700, "#!/bin/sh\ntest \"$1 $2 $3\" = 'ec2 describe-volumes --volume-ids' && grep -- \"\\\"$4\\\"\" "+status+"\n")
	logs := "kubectl logs -n kube-system $(kubectl get pod -n kube-system -l app=ebs-csi-controller -o jsonpath='{.items[0].metadata.name}') "
	sh := &shell{
		equivalents: map[string]string{
			logs + "-c csi-attacher --tail=100": "tail -n 100 " + lab.LogOf("attacher"),
			logs + "-c ebs-plugin --tail=100":   "tail -n 100 " + write("calls", 0o600, lines(calls)...),
		},
		names: strings.NewReplacer("NODE", node, "POD", s.Pod("holder"), "PV", s.Volume, "HANDLE", s.Handle),
		environment: append(os.Environ(),
			"PATH="+strings.Join([]string{dir, filepath.Dir(lab.Kubectl()), filepath.Dir(plugin), os.Getenv("PATH")}, ":"), "KUBECONFIG="+lab.Kubeconfig(),
			"POD="+s.Pod("waiter"), "NS="+scenario.Namespace, "PV="+s.Volume, "NODE="+node, "VA="+kube.AttachmentName(s.Handle, labdisk.DriverDisk, node)),
	}
	if _, err := exec.LookPath("jq"); err != nil {
		write("jq", 0o700, "#!/bin/sh\ntest -n \"$1\" && grep -A3 persistentVolumeName\n")
		t.Logf("jq is not installed (%v): grep takes its place", err)
	}
	return sh
}

func lines[T any](of []T) []any {
	var all []any
	for _, one := range of {
		all = append(all, one)
	}
	return all
}

// run runs the lines of a block and returns what they print. A command that diagnoses exits with status 2 or 3 if something is blocked.
func (sh *shell) run(t *testing.T, block string, diagnoses bool) string {
	t.Helper()
	for _, old := range slices.Sorted(maps.Keys(sh.equivalents)) {
		block = strings.ReplaceAll(block, old, sh.equivalents[old])
	}
	c := exec.CommandContext(t.Context(), "sh", "-e", "-c", block)
	c.Env = sh.environment
	out, err := c.CombinedOutput()
	if err != nil && (!diagnoses || c.ProcessState.ExitCode() < 2 || c.ProcessState.ExitCode() > 3) || len(out) == 0 {
		t.Errorf("%s: %v\n%s", block, err, out)
	}
	return string(out)
}
