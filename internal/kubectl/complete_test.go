package kubectl

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// TestCompletion offers kinds, names of objects that the user may list, and the values of flags.
func TestCompletion(t *testing.T) {
	server.Start(t)
	defer func(shipped time.Duration) { completionTimeout = shipped }(completionTimeout)
	completionTimeout = time.Minute // the API server may be slow
	namespaces(t, "completed", "other")
	create(t, node("alpha"))
	create(t, node("beta"))
	create(t, fixture.Pod("completed", "db-0", "alpha"))
	create(t, fenceOn("alpha", 1))
	create(t, fixture.Pod("other", "db-1", "alpha"))
	admin := apiserver.Kubeconfig(t, server.Config())
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"commands":                         {args: []string{"timel"}, want: "timeline"},
		"kinds":                            {args: []string{"explain", "p"}, want: "pod/ pvc/ pv/"},
		"nodes of evidence":                {args: []string{"evidence", "alp"}, want: "alpha"},
		"nodes of evidence with the kind":  {args: []string{"evidence", "node/b"}, want: "node/beta"},
		"nodes of fence":                   {args: []string{"fence", "be"}, want: "beta"},
		"sources of import":                {args: []string{"import", ""}, want: "far"},
		"formats of import":                {args: []string{"import", "far", "-o", ""}, want: "json yaml"},
		"fences of unfence":                {args: []string{"unfence", "al"}, want: "alpha"},
		"formats of evidence":              {args: []string{"evidence", "-o", ""}, want: "json yaml wide"},
		"formats of check":                 {args: []string{"check", "-o", ""}, want: "json yaml short"},
		"formats of a list":                {args: []string{"orphans", "-o", ""}, want: "json yaml wide name"},
		"kinds of timeline":                {args: []string{"timeline", ""}, want: "pod/ pvc/ pv/"},
		"pods of the namespace":            {args: []string{"explain", "-n", "completed", "pod/"}, want: "pod/db-0"},
		"kind and name":                    {args: []string{"explain", "-n", "other", "pods", "d"}, want: "db-1"},
		"nodes that begin with alp":        {args: []string{"wait-detached", "node/alp"}, want: "node/alpha"},
		"a kind that is not taken":         {args: []string{"timeline", "node/"}, want: ""},
		"no more than one object":          {args: []string{"explain", "node/alpha", ""}, want: ""},
		"formats":                          {args: []string{"timeline", "-o", ""}, want: "json yaml"},
		"a kind that does not exist":       {args: []string{"explain", "secret/"}, want: ""},
		"reasons":                          {args: []string{"runbook", "drivernoto"}, want: "DriverNotOnNode"},
		"no second reason":                 {args: []string{"runbook", "NodeGone", ""}, want: ""},
		"names that the user may not list": {args: []string{"explain", "--as", "stranger-to-names", "pod/"}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := complete(t, admin, tc.args...)
			offered := []string{}
			for line := range strings.Lines(got.out) {
				if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); word != "" && !strings.HasPrefix(word, ":") {
					offered = append(offered, word)
				}
			}
			if strings.Join(offered, " ") != tc.want {
				t.Errorf("offered %v, want %s\n%s", offered, tc.want, got.err)
			}
		})
	}
}

// complete asks for completions as kubectl does: what was typed comes last.
func complete(t *testing.T, kubeconfig string, args ...string) answer {
	t.Helper()
	var out, errOut bytes.Buffer
	c := NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, "test")
	c.SetArgs(append([]string{"__complete", "--kubeconfig", kubeconfig}, args...))
	err := c.ExecuteContext(t.Context())
	return answer{out.String(), errOut.String(), Status(err)}
}

// TestCompletionWithoutCluster ends soon, and offers nothing, if the API server accepts the request and does not answer.
func TestCompletionWithoutCluster(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	began := time.Now()
	got := complete(t, apiserver.Kubeconfig(t, &rest.Config{Host: silent.URL}), "explain", "node/")
	if took := time.Since(began); strings.Contains(got.out, "node/") || took < completionTimeout || took > wait.Timeout {
		t.Errorf("after %v: %s%s", took, got.out, got.err)
	}
}

// TestCompletionProgram runs what kubectl runs: kubectl_complete-belay in PATH, beside the plugin.
func TestCompletionProgram(t *testing.T) {
	dir := t.TempDir()
	plugin := "#!/bin/sh\nprintf '%s|' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "kubectl-belay"), []byte(plugin), 0o700); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "../../cmd/kubectl-belay/kubectl_complete-belay", "explain", "pod/", "")
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil || string(out) != "__complete|explain|pod/||" {
		t.Errorf("%v: %s", err, out)
	}
}
