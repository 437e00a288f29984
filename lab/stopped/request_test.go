package stopped

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// terminal is a shell of one user: kubectl with the plugin.
type terminal struct {
	*rig
	user, kubeconfig string
}

// terminalOf gives a user the ClusterRoles that are named.
func (r *rig) terminalOf(user string, roles ...string) *terminal {
	r.Helper()
	for _, role := range roles {
		_, err := r.Scene.Client.RbacV1().ClusterRoleBindings().Create(r.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		}, metav1.CreateOptions{})
		r.Must(err)
	}
	config, err := clientcmd.LoadFromFile(r.Scene.Cluster.Kubeconfig())
	r.Must(err)
	for _, as := range config.AuthInfos {
		as.Impersonate = user // the API server takes the requests as those of the user
	}
	t := &terminal{rig: r, user: user, kubeconfig: filepath.Join(r.TempDir(), user)}
	r.Must(clientcmd.WriteToFile(*config, t.kubeconfig))
	return t
}

// kubectl runs a command, and logs what a terminal shows.
func (t *terminal) kubectl(args ...string) (out string, status int) {
	t.Helper()
	out, status = t.quietly(args...)
	shown := make([]string, 0, len(args))
	for _, a := range args {
		if strings.ContainsAny(a, " {") {
			a = `"` + a + `"`
		}
		shown = append(shown, a)
	}
	t.Logf("\n%s$ kubectl %s\n%s(exit status %d)", t.user, strings.Join(shown, " "), out, status)
	return out, status
}

// quietly runs a command.
func (t *terminal) quietly(args ...string) (out string, status int) {
	t.Helper()
	program := t.Scene.Cluster.Kubectl()
	if args[0] == "belay" {
		var err error
		program, err = cluster.Program("kubectl-belay")
		t.Must(err)
		args = args[1:]
	}
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+t.kubeconfig)
	raw, _ := c.CombinedOutput()
	return string(raw), c.ProcessState.ExitCode()
}

// says runs a command, and checks its exit status and a part of what it says.
func (t *terminal) says(status int, part string, args ...string) {
	t.Helper()
	if out, got := t.kubectl(args...); got != status || !strings.Contains(out, part) {
		t.Errorf("want exit status %d and %q", status, part)
	}
}

// TestPowerOffIsRequested has a person ask for the power-off of a machine whose kubelet is stopped, while recovery gives it a chance: refused while the node is
// Ready, without the right, and without the name of the machine. Then its BMC switches it off, and the volume moves.
func TestPowerOffIsRequested(t *testing.T) {
	labtest.NeedsFencing(t)
	if testing.Short() {
		t.Skip("NOT RUN: a power-off that a person asks for belongs to the long tests")
	}
	kind, _ := cluster.DefaultNodeKind()
	r := open(t, "requested", kind, fencing.Default)
	from, pod := r.WriterNode(), r.WriterPod()
	machine := r.Node(from).Status.NodeInfo.SystemUUID
	alice, bob, carol := r.terminalOf("alice", "belay-fence-power-off"), r.terminalOf("bob", "belay-fence-confirm"), r.terminalOf("carol")
	ask := func(more ...string) []string {
		return append([]string{"belay", "fence", "node/" + from, "--power-off", "--reason", "kubelet does not start"}, more...)
	}
	confirmed := ask("--machine", machine, "--confirm")
	for _, user := range []*terminal{alice, bob} {
		labtest.Until(t, labtest.FenceLimit, "the rights of "+user.user, func() error {
			if out, status := user.quietly("auth", "can-i", "list", "fencesources.fencing.belay.dev"); status != 0 {
				return fmt.Errorf("exit status %d: %s", status, out)
			}
			return nil
		})
	}
	alice.says(2, "NOT MET", confirmed...) // the node is Ready

	began := time.Now()
	r.Must(r.Scene.Cluster.StopAgent(from))
	labtest.Until(t, labtest.FenceLimit, "a power-off to be possible", func() error {
		if out, status := alice.quietly(ask()...); status != 0 {
			return fmt.Errorf("exit status %d: %s", status, out)
		}
		return nil
	})
	alice.kubectl("belay", "explain", "node/"+from)
	bob.says(2, "belay-fence-power-off", ask()...)
	bob.says(2, "permission, NOT MET", confirmed...)
	if out, status := carol.kubectl(confirmed...); status == 0 || !strings.Contains(out, "you lack the permission") {
		t.Error("a user without any right is not told so")
	}
	alice.says(0, "To do it, add --machine "+machine+" and --confirm.", ask()...)
	alice.says(2, "machine, NOT MET", ask("--confirm")...)
	if f, off := r.Fence(from), r.SwitchedOff(from, began); f != nil || !off.IsZero() {
		t.Fatalf("before it was asked for: the fence is %+v, off at %v", f, off)
	}
	asked := time.Now()
	alice.says(0, "Requested.", confirmed...)
	r.Moved(from, labtest.FenceLimit)
	r.Reaches(from, fencing.Moved)
	alice.kubectl("get", "nodefence", from)
	alice.kubectl("belay", "evidence", "node/"+from)
	r.requested(from, asked)
	acknowledged := r.acknowledged(from, pod.UID)
	r.Intact()
	r.complete(pod, acknowledged)
	r.oneWriter()
	r.Must(r.Scene.Cluster.PowerOn(from))
	r.finished(from)
	alice.kubectl("get", "nodefence", from)
}

// requested checks that the machine was switched off for the person, after the request and before anything was taken.
func (r *rig) requested(from string, asked time.Time) {
	r.Helper()
	f, off, deleted := r.Fence(from), r.SwitchedOff(from, asked), r.Deleted(from, asked)
	if f.Spec.Trigger != fencingv1.TriggerRequested || f.Spec.Request == nil || f.Spec.Request.By != "alice" {
		r.Errorf("the fence is %+v", f.Spec)
	}
	if off.IsZero() || off.After(deleted) || r.Scene.Cluster.IsOn(from) {
		r.Errorf("the BMC switched the node off at %v, and its VolumeAttachment was deleted at %v", off, deleted)
	}
	for _, w := range r.Writes() {
		if w.Node != from && w.First.After(asked) {
			r.Logf("FIGURE request: 0 s asked, %.1f s switched off, %.1f s first write elsewhere", off.Sub(asked).Seconds(), w.First.Sub(asked).Seconds())
		}
	}
}
