package kubectl

import (
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/testing/apiserver"
)

// TestCommandsActOnTheSameCluster: a command that is printed takes the flags by which the user chose the cluster, and no secret.
func TestCommandsActOnTheSameCluster(t *testing.T) {
	f := genericclioptions.NewConfigFlags(true)
	*f.Context, *f.KubeConfig, *f.Impersonate, *f.BearerToken = "prod", "/home/o'neil/my config", "system:admin", "secret"
	*f.ImpersonateGroup = []string{"a b"}
	p := &plugin{flags: f}
	for text, want := range map[string]string{
		"kubectl delete pod x -n y":         `kubectl --kubeconfig='/home/o'\''neil/my config' --context=prod --as=system:admin --as-group='a b' delete pod x -n y`,
		"kubectl belay explain va/x":        `kubectl belay explain --kubeconfig='/home/o'\''neil/my config' --context=prod --as=system:admin --as-group='a b' va/x`,
		"kubectl belay force-detach va/x":   `kubectl belay force-detach --kubeconfig='/home/o'\''neil/my config' --context=prod --as=system:admin --as-group='a b' va/x`,
		"kubectl get a; kubectl get b":      `kubectl --kubeconfig='/home/o'\''neil/my config' --context=prod --as=system:admin --as-group='a b' get a; kubectl --kubeconfig='/home/o'\''neil/my config' --context=prod --as=system:admin --as-group='a b' get b`,
		"kubectl belay check":               `kubectl belay check --kubeconfig='/home/o'\''neil/my config' --context=prod --as=system:admin --as-group='a b'`,
		"belay-controller preflight --help": "belay-controller preflight --help",
		"":                                  "",
	} {
		if got := p.command(text); got != want || strings.Contains(got, "secret") {
			t.Errorf("%q:\n%s, want\n%s", text, got, want)
		}
	}
	if got := (&plugin{flags: genericclioptions.NewConfigFlags(true)}).command("kubectl get node"); got != "kubectl get node" {
		t.Errorf("without flags: %s", got)
	}
}

// TestTableThatDoesNotFit keeps whole names.
func TestTableThatDoesNotFit(t *testing.T) {
	var out strings.Builder
	name := "a-name-that-is-longer-than-the-terminal-is-wide"
	wide := &table{columns: []string{"OBJECT", "WHY"}, flexible: []string{"OBJECT"}}
	wide.add(name, strings.Repeat("x", 60))
	if err := wide.print(&out, style{width: 60}); err != nil || !strings.Contains(out.String(), name) {
		t.Errorf("%s (%v)", out.String(), err)
	}
}

// TestHeadingsKeepTheirColor on a terminal.
func TestHeadingsKeepTheirColor(t *testing.T) {
	var out strings.Builder
	p := &plugin{style: style{color: true}}
	p.Out = &out
	report := preflight.ClusterHealth{Checks: []preflight.Check{{Category: "nodes", Name: "ready", Result: preflight.OK, Message: "all\x1b[2J"}}}
	if err := p.healthText(&report, &checkOptions{}); err != nil || !strings.Contains(out.String(), bold+"nodes"+plain) || strings.Contains(out.String(), "[2J") && strings.Contains(out.String(), "\x1b[2J") {
		t.Errorf("%v:\n%q", err, out.String())
	}
}

// TestBadInput is refused with what to do.
func TestBadInput(t *testing.T) {
	server.Start(t)
	admin := apiserver.Kubeconfig(t, server.Config())
	folder := t.TempDir()
	for want, args := range map[string][]string{
		"is no name of a namespace":              {"stuck", "-n", "a b"},
		"namespace nosuch does not exist":        {"stuck", "-n", "nosuch"},
		"there is no command \"nosuch\"":         {"help", "nosuch"},
		"name one object, pod/NAME":              {"explain"},
		"name one object, va/NAME":               {"force-detach", "va", "b", "c"},
		"--observe needs --take-over":            {"check", "--observe", "1s"},
		"CSI driver typo does not exist":         {"map", "--driver", "typo"},
		"is a folder":                            {"bundle", "-f", folder},
		"pods/x does not exist in namespace def": {"explain", "pod/x"},
	} {
		got := run(t, admin, args...)
		if got.status != StatusError || !strings.Contains(got.err, want) {
			t.Errorf("%v: exit status %d: %s%s, want %q", args, got.status, got.out, got.err, want)
		}
	}
	if got := run(t, admin, "bundle", "-n", "nosuch", "-f", folder+"/b.tar.gz"); got.status != StatusError || !strings.Contains(got.err, "namespace nosuch does not exist") {
		t.Errorf("%+v", got)
	}
	for i, want := range []string{"", "exists"} {
		got := run(t, admin, "bundle", "--logs=false", "-f", folder+"/b.tar.gz")
		if (got.status == StatusClear) != (i == 0) || !strings.Contains(got.err, want) {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if got := run(t, admin, "version"); got.status != StatusClear || !strings.Contains(got.out, "version test") {
		t.Errorf("%+v", got)
	}
}

// TestServerThatDoesNotAnswer: wait-detached says what is wrong, and ends when its time is over.
func TestServerThatDoesNotAnswer(t *testing.T) {
	server.Start(t)
	got := run(t, apiserver.Kubeconfig(t, server.Config()), "wait-detached", "node/x", "--timeout", "1s", "--server", "https://127.0.0.1:1")
	if got.status != StatusError || strings.Contains(got.err, "still attached") || !strings.Contains(got.err, "could not be read within 1s") || !strings.Contains(got.err, "refused") {
		t.Errorf("%+v", got)
	}
}
