package kubectl

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
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

// TestCheckNamesCommandsOfTheSameCluster: the message about blocked volumes names a command.
func TestCheckNamesCommandsOfTheSameCluster(t *testing.T) {
	server.Start(t)
	va := fixture.Attachment("of-no-node", driver, "nowhere", "v-nowhere")
	va.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: "no"}
	create(t, va)
	admin := apiserver.Kubeconfig(t, server.Config())
	for _, format := range []string{"", "json"} {
		args := []string{"check"}
		if format != "" {
			args = append(args, "-o", format)
		}
		if got := run(t, admin, args...); !strings.Contains(got.out, "kubectl belay stuck --kubeconfig="+admin+" -A lists them") {
			t.Errorf("%q: %s%s", format, got.out, got.err)
		}
	}
}

// TestBundleOfNothing: an archive without content is an error, and no file.
func TestBundleOfNothing(t *testing.T) {
	server.Start(t)
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	got := run(t, apiserver.Kubeconfig(t, server.User(t, "packs-nothing")), "bundle", "-f", name)
	if _, err := os.Stat(name); got.status != StatusError || err == nil || !strings.Contains(got.err, "nothing could be read") || !strings.Contains(got.err, "pods in namespace default") {
		t.Errorf("%v: %+v", err, got)
	}
}

// TestSilentServer: every command that reads says that it waits for the API server, and for which.
func TestSilentServer(t *testing.T) {
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() }) // after the parallel ones
	address := "https://" + silent.Addr().String()
	for _, command := range []string{"explain pod/x", "stuck", "orphans", "map", "check", "timeline pod/x", "force-detach va/x", "wait-detached node/x"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			errOut := &hears{text: "Waiting for the API server " + address, heard: cancel}
			c := NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: io.Discard, ErrOut: errOut}, "test")
			c.SetArgs(append(strings.Fields(command), "--server", address, "--request-timeout", "2m"))
			if err := c.ExecuteContext(ctx); err == nil || err.Error() != "interrupted" {
				t.Errorf("%v", err)
			}
		})
	}
}

// hears calls a function when a text is written.
type hears struct {
	text  string
	heard func()
}

func (h *hears) Write(data []byte) (int, error) {
	if strings.Contains(string(data), h.text) {
		h.heard()
	}
	return len(data), nil
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
	p.Out = printable.New(&out)
	report := preflight.ClusterHealth{Checks: []preflight.Check{{Category: "nodes", Name: "ready", Result: preflight.OK, Message: "all\x1b[2J"}}}
	if err := p.healthText(&report, &checkOptions{}); err != nil || !strings.Contains(out.String(), "\x1b[1mnodes\x1b[0m") || strings.Contains(out.String(), "\x1b[2J") {
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
		"folder /nowhere of --file":              {"bundle", "-f", "/nowhere/x.tar.gz"},
		"--namespace \"a b\" is no name":         {"bundle", "-n", "a b"},
		"--namespace \"c d\" is no name":         {"check", "-n", "c d"},
		"name one object, pod/NAME, pvc/NAME or": {"timeline"},
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
	before := causeWithin
	causeWithin = time.Minute // it is refused at once, but the test may not run at once
	t.Cleanup(func() { causeWithin = before })
	got := run(t, apiserver.Kubeconfig(t, server.Config()), "wait-detached", "node/x", "--timeout", "1s", "--server", "https://127.0.0.1:1")
	if got.status != StatusError || strings.Contains(got.err, "still attached") || !strings.Contains(got.err, "could not be read within 1s") || !strings.Contains(got.err, "refused") {
		t.Errorf("%+v", got)
	}
}
