package takeover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/hollow"
	"belay.dev/belay/lab/informer"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

const (
	inTreeLimit     = 3 * time.Minute // for each wait
	inTreeNamespace = "default"
	recordsLease    = "belay-controller-records"
)

// inTreeKinds are the volumes that a node connects by itself, each with the name that kube-controller-manager reports for one of this name
// (k/k v1.36.3 pkg/volume/fc/fc.go GetVolumeName, pkg/volume/iscsi/iscsi.go GetVolumeName).
var inTreeKinds = map[string]struct {
	source func(name string) corev1.PersistentVolumeSource
	unique string
}{
	"fc": {
		source: func(name string) corev1.PersistentVolumeSource {
			return corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{name}, Lun: new(int32(1))}}
		},
		unique: "kubernetes.io/fc/[%s]:1",
	},
	"iscsi": {
		source: func(name string) corev1.PersistentVolumeSource {
			return corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2026-11.dev.belay:" + name, Lun: 1}}
		},
		unique: "kubernetes.io/iscsi/192.0.2.1:3260:iqn.2026-11.dev.belay:%s:1",
	},
}

// inTreeTurns is a lab without machines on which the controllers take turns: the kubelets of two nodes are played, the API server and both
// controllers are real.
type inTreeTurns struct {
	*testing.T

	lab    *cluster.Cluster
	client kubernetes.Interface
	fleet  *hollow.Fleet

	leader string // the component that leads
	probes int

	mu        sync.Mutex
	withdrawn []string // "node: volume" of each report that was withdrawn since the last look
}

// TestInTreeTakeOverAndBack: Fibre Channel and iSCSI volumes that kube-controller-manager has attached are recorded once by the first
// belay-controller, and nothing is detached. One whose pod is gone by then is released; one whose pod moves goes with it, there and back.
func TestInTreeTakeOverAndBack(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the take-over of a live lab belongs to the long tests")
	}
	l := openInTree(t)
	l.lead(cluster.PlaneUpstream)
	for kind := range inTreeKinds {
		for _, role := range []string{"stays", "moves", "left"} {
			l.volume(kind, role)
			l.pod(kind, role, "h-1")
		}
	}
	l.awaitMounted("h-1", "stays", "moves", "left")
	if made := l.attachments(); len(made) > 0 {
		t.Errorf("kube-controller-manager made the VolumeAttachments %v", slices.Collect(maps.Keys(made)))
	}
	l.stop()
	l.removePods("h-1", "left") // while no controller runs
	l.awaitMounted("", "left")

	l.lead(cluster.PlaneBelay)
	recorded := l.awaitRecorded()
	l.probe()
	l.checkWithdrawn("the first leader took over")
	l.stop()
	l.lead(cluster.PlaneBelay)
	l.probe()
	l.checkWithdrawn("the next leader came")
	for at, va := range l.attachments() {
		if recorded[at].UID != va.UID {
			t.Errorf("%s was recorded again", at)
		}
	}
	moved := time.Now()
	l.removePods("h-1", "moves")
	l.pods("h-2", "moves")
	l.awaitMounted("h-2", "moves")
	t.Logf("volumes of moved pods were on the next node %.0f s later", time.Since(moved).Seconds())
	l.awaitWithdrawn("h-1", "left")
	l.checkWithdrawn("the pods moved", "h-1 left", "h-1 moves")
	l.checkAttachments(map[string]string{"stays": "h-1", "moves": "h-2"})

	l.stop()
	before := l.attachments()
	l.lead(cluster.PlaneUpstream)
	l.probe()
	l.checkWithdrawn("kube-controller-manager came back")
	l.removePods("h-2", "moves")
	l.pods("h-1", "moves")
	l.awaitMounted("h-1", "moves")
	l.checkWithdrawn("the pods moved back", "h-2 moves")
	for at, va := range l.attachments() {
		if before[at].ResourceVersion != va.ResourceVersion {
			t.Errorf("kube-controller-manager changed the VolumeAttachment of %s", at)
		}
	}
	for _, line := range l.fleet.Violations() {
		t.Error(line)
	}
}

func openInTree(t *testing.T) *inTreeTurns {
	t.Helper()
	lab, err := cluster.Up(t.Context(), labtest.Steady(cluster.Options{Name: "takeover-intree", Bare: true, Progress: t.Logf}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if left := scenario.LeftOnMachine(lab.Dir()); len(left) > 0 {
			t.Errorf("the lab left on the machine:\n%s", strings.Join(left, "\n"))
		}
	})
	l := &inTreeTurns{T: t, lab: lab, client: kubernetes.NewForConfigOrDie(lab.RESTConfig())}
	ctx, stop := context.WithCancel(t.Context())
	l.fleet, err = hollow.Start(ctx, lab.RESTConfig(), []string{"h-1", "h-2"}, hollow.Options{Drivers: []string{"hollow.test"}, Heartbeat: 10 * time.Second})
	l.must(err)
	factory := informers.NewSharedInformerFactory(l.client, 0)
	t.Cleanup(func() { stop(); l.fleet.Wait(); factory.Shutdown() })
	_, err = informer.OnChange(factory.Core().V1().Nodes().Informer(), l.nodeChanged)
	l.must(err)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	// No pod is made without.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err = l.client.CoreV1().ServiceAccounts(inTreeNamespace).Create(ctx, account, metav1.CreateOptions{})
	l.must(err)
	return l
}

func (l *inTreeTurns) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// nodeChanged records each report that a Node loses.
func (l *inTreeTurns) nodeChanged(before, after *corev1.Node) {
	if before == nil || after == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range before.Status.VolumesAttached {
		if !slices.ContainsFunc(after.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == v.Name }) {
			l.withdrawn = append(l.withdrawn, after.Name+": "+string(v.Name))
		}
	}
}

// lead starts the controller of a plane; none may run.
func (l *inTreeTurns) lead(plane string) {
	l.Helper()
	var err error
	if plane == cluster.PlaneUpstream {
		l.leader, err = l.lab.StartManager("persistentvolume-attach-detach-controller")
	} else {
		l.leader, err = l.lab.StartController(plane)
	}
	l.must(err)
}

func (l *inTreeTurns) stop() {
	l.Helper()
	l.must(l.lab.Stop(l.Context(), l.leader))
}

func uniqueName(kind, role string) string { return fmt.Sprintf(inTreeKinds[kind].unique, role) }

// volume makes a claim and the PersistentVolume that it is bound to, as no controller does here.
func (l *inTreeTurns) volume(kind, role string) {
	l.Helper()
	name := kind + "-" + role
	pv := fixture.PersistentVolume(name, "", "")
	pv.Spec.PersistentVolumeSource = inTreeKinds[kind].source(role)
	claims := l.client.CoreV1().PersistentVolumeClaims(inTreeNamespace)
	claim, err := claims.Create(l.Context(), fixture.Claim(inTreeNamespace, name, pv), metav1.CreateOptions{})
	l.must(err)
	_, err = l.client.CoreV1().PersistentVolumes().Create(l.Context(), fixture.Bind(pv, claim), metav1.CreateOptions{})
	l.must(err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = claims.UpdateStatus(l.Context(), claim, metav1.UpdateOptions{})
	l.must(err)
}

func (l *inTreeTurns) pod(kind, role, node string) {
	l.Helper()
	pod := fixture.Pod(inTreeNamespace, kind+"-"+role+"-"+node, node, kind+"-"+role)
	pod.Spec.AutomountServiceAccountToken = new(false)
	_, err := l.client.CoreV1().Pods(inTreeNamespace).Create(l.Context(), pod, metav1.CreateOptions{})
	l.must(err)
}

func (l *inTreeTurns) pods(node, role string) {
	l.Helper()
	for kind := range inTreeKinds {
		l.pod(kind, role, node)
	}
}

func (l *inTreeTurns) removePods(node, role string) {
	l.Helper()
	for kind := range inTreeKinds {
		l.must(l.client.CoreV1().Pods(inTreeNamespace).Delete(l.Context(), kind+"-"+role+"-"+node, metav1.DeleteOptions{}))
	}
}

// awaitMounted waits until the volumes of the roles are mounted on the node alone, or nowhere.
func (l *inTreeTurns) awaitMounted(node string, roles ...string) {
	l.Helper()
	labtest.Until(l.T, inTreeLimit, fmt.Sprintf("volumes of %v to be mounted on %q alone", roles, node), func() error {
		for kind := range inTreeKinds {
			for _, role := range roles {
				if on := strings.Join(l.fleet.MountedOn(uniqueName(kind, role)), " "); on != node {
					return fmt.Errorf("%s of %s is mounted on %q", kind, role, on)
				}
			}
		}
		return nil
	})
}

// awaitWithdrawn waits until the node does not report the volumes of the role.
func (l *inTreeTurns) awaitWithdrawn(node, role string) {
	l.Helper()
	labtest.Until(l.T, inTreeLimit, "the reports of "+role+" to be withdrawn from "+node, func() error {
		object, err := l.client.CoreV1().Nodes().Get(l.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, v := range object.Status.VolumesAttached {
			for kind := range inTreeKinds {
				if string(v.Name) == uniqueName(kind, role) {
					return fmt.Errorf("%s is reported", v.Name)
				}
			}
		}
		return nil
	})
}

// probe has the leader attach and detach volumes of its own.
func (l *inTreeTurns) probe() {
	l.Helper()
	l.probes++
	role := fmt.Sprintf("probe%d", l.probes)
	began := time.Now()
	for kind := range inTreeKinds {
		l.volume(kind, role)
		l.pod(kind, role, "h-2")
	}
	l.awaitMounted("h-2", role)
	l.removePods("h-2", role)
	l.awaitMounted("", role)
	l.awaitWithdrawn("h-2", role)
	l.Logf("%s attached and detached volumes within %.1f s", l.leader, time.Since(began).Seconds())
}

// attachments are all VolumeAttachments by node and volume.
func (l *inTreeTurns) attachments() map[string]storagev1.VolumeAttachment {
	l.Helper()
	all, err := l.client.StorageV1().VolumeAttachments().List(l.Context(), metav1.ListOptions{})
	l.must(err)
	found := map[string]storagev1.VolumeAttachment{}
	for i := range all.Items {
		va := &all.Items[i]
		key, ok := kube.VolumeOfAttachment(va)
		if !ok {
			l.Fatalf("VolumeAttachment %s names no volume", va.Name)
		}
		found[va.Spec.NodeName+": "+kube.UniqueVolumeName(key.Driver, key.Handle)] = *va
	}
	return found
}

// awaitRecorded waits for the Lease that says that what Nodes report is recorded, and checks that it is.
func (l *inTreeTurns) awaitRecorded() map[string]storagev1.VolumeAttachment {
	l.Helper()
	labtest.Until(l.T, inTreeLimit, "the Lease "+recordsLease, func() error {
		_, err := l.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(l.Context(), recordsLease, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return err
		}
		l.must(err)
		return nil
	})
	l.checkAttachments(map[string]string{"stays": "h-1", "moves": "h-1", "left": "h-1"})
	recorded := l.attachments()
	for at, va := range recorded {
		if mark := va.Annotations[kube.NodeUIDAnnotation]; mark != attachment.InDoubt {
			l.Errorf("%s was taken over for the Node %q", at, mark)
		}
	}
	return recorded
}

// checkAttachments: these roles have one VolumeAttachment each, at this node, and there are no others.
func (l *inTreeTurns) checkAttachments(nodes map[string]string) {
	l.Helper()
	var want []string
	for role, node := range nodes {
		for kind := range inTreeKinds {
			want = append(want, node+": "+uniqueName(kind, role))
		}
	}
	slices.Sort(want)
	labtest.Until(l.T, inTreeLimit, fmt.Sprintf("VolumeAttachments of %q alone", want), func() error {
		if got := slices.Sorted(maps.Keys(l.attachments())); !slices.Equal(got, want) {
			return fmt.Errorf("there are those of %q", got)
		}
		return nil
	})
}

// checkWithdrawn: since the last check, the reports of these roles were withdrawn ("node role"), and those of probes, once each, and no others.
func (l *inTreeTurns) checkWithdrawn(when string, want ...string) {
	l.Helper()
	wanted := map[string]bool{}
	for _, w := range want {
		node, role, _ := strings.Cut(w, " ")
		for kind := range inTreeKinds {
			wanted[node+": "+uniqueName(kind, role)] = true
		}
	}
	var seen []string
	labtest.Until(l.T, inTreeLimit, "reports to be withdrawn when "+when, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for line := range wanted {
			if !slices.Contains(l.withdrawn, line) {
				return fmt.Errorf("not yet that from %s", line)
			}
		}
		seen, l.withdrawn = l.withdrawn, nil
		return nil
	})
	for _, line := range seen {
		if !wanted[line] && !strings.Contains(line, "probe") {
			l.Errorf("when %s, a report was withdrawn from %s", when, line)
		}
		delete(wanted, line) // a second time is an error
	}
}
