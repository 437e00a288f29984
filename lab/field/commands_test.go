package field

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kubectl"
)

// TestPrintedCommands: each command that is printed as a next step has real names, is one that kubectl or the plugin has, and finds what it is
// about: those that read are run, those that write are run with --dry-run=server, and of those that need a kubelet the pod is read.
func TestPrintedCommands(t *testing.T) {
	r, plugin := rig(t)
	commands := r.printed(t, plugin)
	if len(commands) < 20 {
		t.Fatalf("only %d commands were printed: %v", len(commands), commands)
	}
	for text, from := range commands {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if word := placeholder.FindString(text); word != "" {
				t.Fatalf("%s prints the placeholder %s", from.question, word)
			}
			if program, _, _ := strings.Cut(text, " "); slices.Contains(others, program) {
				if !strings.Contains(from.step, " https://") {
					t.Errorf("%s prints a command of %s without its documentation: %s", from.question, program, from.step)
				}
				return
			}
			called := calls(t, text)
			if len(called) == 0 {
				t.Fatalf("%s prints a command that does not call kubectl", from.question)
			}
			for _, args := range called {
				if args[0] == "belay" {
					r.checkOwn(t, plugin, args[1:])
				} else {
					r.checkKubectl(t, args)
				}
			}
		})
	}
}

// placeholder matches a word that stands for a name.
var placeholder = regexp.MustCompile(`(^|[ /=<])[A-Z][A-Z_-]+\b`)

// source is the first question to which a command was printed, and the text of its step.
type source struct{ question, step string }

// printed are the commands of all next steps.
func (r *Rig) printed(t *testing.T, plugin string) map[string]source {
	t.Helper()
	situations, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]source{}
	add := func(question []string, found ...diagnosis.Finding) {
		for i := range found {
			for _, step := range found[i].Next {
				if _, known := commands[step.Command]; step.Command != "" && !known {
					commands[step.Command] = source{question: strings.Join(question, " "), step: step.Text}
				}
			}
		}
	}
	for _, s := range situations {
		for _, question := range s.Questions() {
			var answer struct {
				Findings []diagnosis.Finding `json:"findings"`
				Items    []diagnosis.Finding `json:"items"`
			}
			r.read(t, plugin, &answer, question...)
			add(question, append(answer.Findings, answer.Items...)...)
		}
	}
	var orphans diagnosis.OrphanList
	r.read(t, plugin, &orphans, "orphans")
	for i := range orphans.Items {
		add([]string{"orphans"}, orphans.Items[i].Finding)
	}
	return commands
}

// others are the programs of storages and clouds whose commands are printed (internal/drivers/facts.yaml, ask).
var others = []string{"aws", "az", "doctl", "gcloud", "hcloud", "openstack"}

// calls returns the arguments of each kubectl in a line, as a shell passes them. It runs nothing else: the PATH has a kubectl alone, which writes
// its arguments down.
func calls(t *testing.T, line string) (all [][]string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "calls") //nolint:usetesting // kubectl takes no file whose path has a comma, as the name of the test may have
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	record := filepath.Join(dir, "calls")
	input := filepath.Join(dir, "input.json")
	script := fmt.Sprintf("#!/bin/sh\nprintf '%%s\\0' \"$@\" >> %s\nprintf '\\n\\0' >> %s\n"+
		"case \" $* \" in *' -f - '*) IFS= read -r line; printf '%%s' \"$line\" > %s;; esac\n", record, record, input)
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "/bin/sh", "-c", line)
	command.Env = []string{"PATH=" + dir}
	out, err := command.CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() == 2) { //nolint:errorlint // of Run
		t.Fatalf("a shell does not read it: %v: %s", err, out)
	}
	recorded, _ := os.ReadFile(record) // none: it was not called
	var args []string
	for word := range strings.SplitSeq(strings.TrimSuffix(string(recorded), "\x00"), "\x00") {
		if word == "\n" {
			all, args = append(all, args), nil
			continue
		}
		if word == "-" && slices.Contains(args, "-f") {
			word = input
		}
		args = append(args, word)
	}
	return all
}

// What is done with the commands of kubectl.
var (
	reads    = []string{"get", "describe", "auth", "explain", "api-resources", "version", "top"}
	writes   = []string{"delete", "patch", "taint", "drain", "cordon", "uncordon", "scale", "annotate", "label", "create", "apply", "set"}
	ofAPod   = map[string]string{"logs": "pods/log", "exec": "pods/exec", "debug": "pods/ephemeralcontainers", "cp": "pods/exec"}
	ownReads = []string{"explain", "stuck", "orphans", "map", "timeline", "check", "evidence", "force-detach", "fence", "unfence", "declare-gone", "wait", "bundle"}
)

func (r *Rig) checkKubectl(t *testing.T, args []string) {
	t.Helper()
	switch verb := args[0]; {
	case slices.Contains(reads, verb):
		r.kubectl(t, args...)
	case slices.Contains(writes, verb):
		r.kubectl(t, append(args, "--dry-run=server")...)
	case verb == "edit": // opens an editor
		r.kubectl(t, append([]string{"get"}, args[1:]...)...)
	case verb == "debug" && strings.HasPrefix(args[1], "node/"): // starts a pod on the node
		r.kubectl(t, "get", args[1])
		r.kubectl(t, "auth", "can-i", "create", "pods")
	case ofAPod[verb] != "":
		namespace, pod, container := podOf(args)
		names := r.kubectl(t, "get", "pod", pod, "-n", namespace, "-o", "jsonpath={.spec.containers[*].name}")
		if container != "" && !slices.Contains(strings.Fields(names), container) {
			t.Errorf("pod %s has the containers %s, not %s", pod, names, container)
		}
		r.kubectl(t, "auth", "can-i", "get", ofAPod[verb], "-n", namespace)
	default:
		t.Errorf("the test knows no command %q of kubectl", verb)
	}
}

// podOf reads the pod that a command is about.
func podOf(args []string) (namespace, pod, container string) {
	namespace = "default"
	for i := 1; i < len(args); i++ {
		flag, value, has := strings.Cut(args[i], "=")
		if !has && i+1 < len(args) {
			value = args[i+1]
		}
		switch flag {
		case "-n", "--namespace":
			namespace = value
		case "-c", "--container":
			container = value
		case "--":
			return namespace, pod, container
		default:
			if pod == "" && !strings.HasPrefix(flag, "-") {
				pod = strings.TrimPrefix(args[i], "pod/")
			}
			continue
		}
		if !has {
			i++
		}
	}
	return namespace, pod, container
}

// kubectl runs the kubectl of the cluster's version.
func (r *Rig) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), r.lab.Kubectl(), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+r.lab.Kubeconfig(), "HOME="+t.TempDir())
	var out, errOut bytes.Buffer
	command.Stdout, command.Stderr = &out, &errOut
	if err := command.Run(); err != nil && !strings.Contains(errOut.String(), "unable to drain node") && // what a drain says of pods is for who drains
		!strings.Contains(errOut.String(), `taint "node.kubernetes.io/out-of-service" not found`) { // the step before sets it
		t.Errorf("kubectl %s: %v: %s", strings.Join(args, " "), err, errOut.String())
	}
	return out.String()
}

// checkOwn parses a command of the plugin, and runs it if it only shows something.
func (r *Rig) checkOwn(t *testing.T, plugin string, args []string) {
	t.Helper()
	root := kubectl.NewCommand(genericiooptions.NewTestIOStreamsDiscard(), "test")
	c, rest, err := root.Find(args)
	if err != nil || c == root {
		t.Fatalf("kubectl belay has no command %v: %v", args, err)
	}
	if err := c.ParseFlags(rest); err != nil {
		t.Fatalf("kubectl belay %v: %v", args, err)
	}
	if err := c.ValidateArgs(c.Flags().Args()); err != nil {
		t.Fatalf("kubectl belay %v: %v", args, err)
	}
	if confirm := c.Flags().Lookup("confirm"); !slices.Contains(ownReads, c.Name()) || confirm != nil && confirm.Changed || c.Flags().Changed("wait") {
		t.Fatalf("kubectl belay %v is no command that only shows something", args)
	}
	command := exec.CommandContext(t.Context(), plugin, args...)
	command.Env = r.environment()
	if out, err := command.CombinedOutput(); command.ProcessState.ExitCode() == kubectl.StatusError {
		t.Errorf("kubectl belay %v: %v: %s", args, err, out)
	}
}
