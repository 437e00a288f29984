package kubectl

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// waitDetached waits until a node is detached that is not, for as long as the machine needs to read what is attached.
func waitDetached(t *testing.T, kubeconfig, node string) answer {
	t.Helper()
	for timeout := 7 * time.Second; ; timeout *= 2 {
		got := run(t, kubeconfig, "wait-detached", node, "--timeout="+timeout.String())
		if timeout > wait.Timeout || !strings.Contains(got.err, "could not be read within") {
			return got
		}
	}
}

// TestWaitDetachedFromNoNode: a name that no Node has is more likely wrong than detached, and what follows is a reboot. A
// VolumeAttachment shows that there was such a node.
func TestWaitDetachedFromNoNode(t *testing.T) {
	server.Start(t)
	kubeconfig := apiserver.Kubeconfig(t, server.Config())
	if got := run(t, kubeconfig, "wait-detached", "node/mistyped", "--timeout=2m"); got.status != StatusError || !strings.Contains(got.err, "nodes/mistyped does not exist") || got.out != "" {
		t.Errorf("exit status %d: %s%s", got.status, got.out, got.err)
	}
	va := fixture.Attachment("left-behind", driver, "deleted", "gone")
	create(t, va)
	if got := waitDetached(t, kubeconfig, "node/deleted"); got.status != StatusBlocked {
		t.Errorf("with a VolumeAttachment, exit status %d: %s%s", got.status, got.out, got.err)
	}
}

// TestWaitDetachedWithoutACause: what is attached is known, although why cannot be read.
func TestWaitDetachedWithoutACause(t *testing.T) {
	server.Start(t)
	create(t, node("puzzling", "v-puzzling"))
	create(t, fixture.Attachment("puzzling", driver, "puzzling", "v-puzzling"))
	before := explainWithin
	explainWithin = 0
	t.Cleanup(func() { explainWithin = before })
	got := waitDetached(t, apiserver.Kubeconfig(t, server.Config()), "node/puzzling")
	if got.status != StatusBlocked || !strings.Contains(got.out, "Still attached to node puzzling") || !strings.Contains(got.out, "1 VolumeAttachment") || !strings.Contains(got.err, "Why volumes are still attached to node puzzling could not be read: ") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}

// TestWaitDetachedFromAFencedNode: no pod of a node uses what the node lists after recovery took it, and a machine that is off cannot be drained.
func TestWaitDetachedFromAFencedNode(t *testing.T) {
	for name, tc := range map[string]struct {
		attachments []string
		drains      bool
	}{"fenced": {nil, false}, "pods use them": {[]string{"csi-1"}, true}} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			answer := &Detached{Node: "n", Explanation: &diagnosis.Explanation{Verdict: diagnosis.Clear, Summary: "the volumes have moved"}}
			answer.Attachments, answer.InUse = tc.attachments, []string{"kubernetes.io/csi/d^h"}
			if err := (&plugin{IOStreams: genericiooptions.IOStreams{Out: &out}, flags: genericclioptions.NewConfigFlags(true)}).printRemains(answer, time.Second); err != nil {
				t.Fatal(err)
			}
			if text := out.String(); strings.Contains(text, "drain") != tc.drains || strings.Contains(text, "the volumes have moved") == tc.drains {
				t.Errorf("%s", text)
			}
		})
	}
}
