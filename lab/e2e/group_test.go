package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/wait"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/ledger"
	"belay.dev/belay/lab/scenario"
)

// enough records of one pod show that it can write.
const enough = 3

// turn is one pod's time with the volume.
type turn struct {
	name          string
	user, fsGroup int64
	// found are owner, group and mode of all that lies on the volume while the pod runs.
	found map[string]string
}

// turns are two users who may write by their fsGroup alone: the driver makes a volume for
// root, and the records belong to the first.
var turns = []turn{
	{"first", 1001, 5001, map[string]string{".": "0:5001 2775", "lost+found": "0:5001 2770", "records": "1001:5001 644"}},
	{"second", 1002, 5002, map[string]string{".": "0:5002 2775", "lost+found": "0:5002 2770", "records": "1001:5002 664"}},
}

// TestPodsOnEachKindOfNode runs pods of the same kinds on a real kubelet and on belay's node agent, which have to treat them alike.
func TestPodsOnEachKindOfNode(t *testing.T) {
	labtest.Needs(t)
	for _, kind := range []string{cluster.NodeKindBelay, cluster.NodeKindKubelet} {
		t.Run(kind, func(t *testing.T) {
			if best, because := cluster.DefaultNodeKind(); kind == cluster.NodeKindKubelet && best != kind {
				t.Skip("NOT RUN: " + because)
			}
			scene := labtest.Open(t, cluster.Options{
				Name: "e2e-pods", Nodes: 1, NodeKind: kind, Plane: cluster.PlaneBelay, Drivers: []string{labdisk.DriverDisk, labdisk.DriverLocal},
				NodeStatusUpdateFrequency: time.Second, // or a second pod waits for kubelet to say that the first is done
			})
			// The first counts all calls of the drivers.
			t.Run("inline volumes", func(t *testing.T) { testInlineVolumes(t, scene) })
			t.Run("non-root", func(t *testing.T) { testNonRootPods(t, scene) })
		})
	}
}

// testNonRootPods lets one user's pod start a file and another user's pod append to it: groups and modes are as expected.
func testNonRootPods(t *testing.T, scene *scenario.Scene) {
	t.Helper()
	makeClaim(t, scene, "shared")
	for i, turn := range turns {
		began := time.Now()
		turn.take(t, scene, "shared", turns[:i])
		t.Logf("pod %s came, wrote and went in %.1f s", turn.name, time.Since(began).Seconds())
	}
}

func makeClaim(t *testing.T, scene *scenario.Scene, name string) {
	t.Helper()
	_, err := scene.Client.CoreV1().PersistentVolumeClaims(scenario.Namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: scenario.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(scenario.StorageClass),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// take runs the pod until it has appended to the data of the pods before it, checks the volume, and deletes the pod.
func (u turn) take(t *testing.T, scene *scenario.Scene, claim string, before []turn) {
	t.Helper()
	pods := scene.Client.CoreV1().Pods(scenario.Namespace)
	pod := labtest.Writer(u.name, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever // a writer that may not write says so once
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: &u.user, RunAsGroup: &u.user, RunAsNonRoot: new(true), FSGroup: &u.fsGroup,
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod = labtest.UntilPod(t, scene, u.name, "runs", func(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase != corev1.PodPending })
	untilWritten(t, scene, u.name)
	volume := mountOf(t, scene, pod)
	if diff := cmp.Diff(u.found, ownersAndModes(t, volume)); diff != "" {
		t.Errorf("while pod %s runs, on the volume (-want +got):\n%s", u.name, diff)
	}
	report := readRecords(t, filepath.Join(volume, "records"))
	for _, wrote := range append(slices.Clone(before), u) {
		if got := report.Writers[pod.Spec.NodeName+"/"+wrote.name]; got < enough {
			t.Errorf("while pod %s runs, %d records of %s are there, want at least %d", u.name, got, wrote.name, enough)
		}
	}
	if err := pods.Delete(t.Context(), u.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.UntilPod(t, scene, u.name, "is gone", func(pod *corev1.Pod) bool { return pod == nil })
}

// untilWritten waits until the pod's log acknowledges enough records.
func untilWritten(t *testing.T, scene *scenario.Scene, pod string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Timeout)
	defer cancel()
	labtest.Until(t, wait.Timeout, "records of pod "+pod, func() error {
		log, err := scene.Client.CoreV1().Pods(scenario.Namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
		if err != nil {
			return err
		}
		defer log.Close()
		var said []string
		written := 0
		for lines := bufio.NewScanner(log); lines.Scan(); {
			said = append(said, lines.Text())
			if strings.HasPrefix(lines.Text(), "acknowledged ") {
				written++
			}
			if written == enough {
				return nil
			}
		}
		return fmt.Errorf("it wrote %d, want %d; it said:\n%s", written, enough, strings.Join(said, "\n"))
	})
}

// mountOf is where the pod's volume is mounted, seen through the process that made the node's namespaces.
func mountOf(t *testing.T, scene *scenario.Scene, pod *corev1.Pod) string {
	t.Helper()
	machine, err := scene.Cluster.Component(pod.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	name := pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName
	claim, err := scene.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", machine.PID), scene.Cluster.Node(pod.Spec.NodeName).Config.RootDir(),
		"pods", string(pod.UID), "volumes/kubernetes.io~csi", claim.Spec.VolumeName, "mount")
}

func ownersAndModes(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		found[name] = fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// readRecords fails the test if the chain does not hold.
func readRecords(t *testing.T, path string) ledger.Report {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	report, err := ledger.Read(file, ledger.Lines)
	if err != nil {
		t.Error(err)
	}
	return report
}
