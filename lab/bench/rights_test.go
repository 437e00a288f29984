package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"belay.dev/belay/deploy"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// openAudited starts a bare lab with an audit log, two nodes and some volumes.
func openAudited(t *testing.T, name string, volumes int) *rig {
	t.Helper()
	labtest.Needs(t)
	r, err := openRig(t.Context(), rigOptions{name: name, audit: true, change: labtest.Steady, say: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dir := r.lab.Dir()
		if err := r.close(context.Background()); err != nil {
			t.Error(err)
		}
		if left := scenario.LeftOnMachine(dir); len(left) > 0 {
			t.Errorf("the lab left on the machine:\n%s", strings.Join(left, "\n"))
		}
	})
	must(t, r.node(t.Context(), nodeName(0)))
	must(t, r.node(t.Context(), nodeName(1)))
	for i := range volumes {
		must(t, r.volume(t.Context(), volumeName(i)))
	}
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// countings is how often requests are counted: on a busy machine one may be sent again, or too late to count for its step.
const countings = 3

// TestRequestsPerAttachAndDetach counts at the API server: an attach costs an attachment and a
// report, a detach a withdrawal and a delete; then events, and what the attacher writes.
func TestRequestsPerAttachAndDetach(t *testing.T) {
	size := Size{Cycles: 5}
	volumes := size.Cycles + 1
	r := openAudited(t, "bench-requests", countings*volumes)
	var wrong []string
	for i := range countings {
		counted, err := r.requestsOf(t.Context(), size, planeBelay, i*volumes)
		must(t, err)
		wrong = nil
		for _, figure := range requestFigures(map[string]tally{planeBelay: counted}) {
			t.Logf("%s: %v %v", figure.Name, figure.Value[planeBelay], figure.Parts[planeBelay])
			for _, target := range figure.Targets {
				if !target.Met {
					wrong = append(wrong, fmt.Sprintf("%s: %v, wanted %s", figure.Name, figure.Value[planeBelay], target.Text))
				}
			}
			if figure.Value[planeBelay] == 0 && figure.Name != figureEventsDetach {
				wrong = append(wrong, figure.Name+": none were counted")
			}
		}
		if len(wrong) == 0 {
			return
		}
	}
	t.Errorf("each of %d times; the last time:\n%s", countings, strings.Join(wrong, "\n"))
}

// TestRights lets the shipped program under the shipped rules do everything that they permit, and compares its requests
// to the API server with the rules, both ways.
func TestRights(t *testing.T) {
	r := openAudited(t, "bench-rights", 6)
	began := time.Now()
	t.Run("an orphan", func(t *testing.T) { orphan(t, r, volumeName(5), nodeName(0)) })
	t.Run("a cycle", func(t *testing.T) { must(t, r.cycle(t.Context(), 0, &samples{})) })
	t.Run("a move that waits", func(t *testing.T) { must(t, r.move(t.Context(), 1, &samples{})) })
	t.Run("somebody deletes an attachment", func(t *testing.T) { deletedByHand(t, r, volumeName(2), nodeName(0)) })
	t.Run("a node that others write", func(t *testing.T) { busyNode(t, r, volumeName(3), nodeName(1)) })
	t.Run("somebody makes the attachment first", func(t *testing.T) { madeByHand(t, r, volumeName(4), nodeName(0)) })
	must(t, r.stop(t.Context()))
	t.Run("lists that cannot be streamed", func(t *testing.T) { unstreamed(t, r) })

	all, err := r.lab.Requests(t.Context(), began, time.Time{})
	must(t, err)
	mine := audit.Of(all, cluster.UserController)
	if refused := audit.Refused(mine); len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	asked, granted := map[string]bool{}, shippedRules(t)
	for _, request := range mine {
		if request.Resource != "" {
			asked[right(request.Verb, request.Group, request.Resource, request.Subresource)] = true
		}
	}
	for name := range asked {
		if !granted[name] {
			t.Errorf("asked for, and in no shipped rule: %s", name)
		}
	}
	for name := range granted {
		if !asked[name] {
			t.Errorf("granted, and never asked for (take it out of the rules, or add a scenario that needs it): %s", name)
		}
	}
	t.Logf("asked for: %v", slices.Sorted(maps.Keys(asked)))
}

// asks reports whether the controller has sent such a request since then.
func asks(t *testing.T, r *rig, since time.Time, name string) bool {
	t.Helper()
	all, err := r.lab.Requests(t.Context(), since, time.Time{})
	must(t, err)
	return slices.ContainsFunc(audit.Of(all, cluster.UserController), func(request audit.Request) bool {
		return request.Right() == name
	})
}

// chanceWithin bounds how long something is done again until the controller has been met in the right moment.
const chanceWithin = 6 * time.Minute

// untilAsked does something again and again until the controller has sent a request that needs a chance.
func untilAsked(t *testing.T, r *rig, name string, again func(ctx context.Context, round int)) {
	t.Helper()
	since, round := time.Now(), 0
	for ; !asks(t, r, since, name); round++ {
		if time.Since(since) > chanceWithin {
			t.Errorf("done %d times in %v, and the controller never had to %s", round, chanceWithin, name)
			return
		}
		ctx, cancel := limited(t.Context())
		again(ctx, round)
		cancel()
	}
	t.Logf("%s: after %d times", name, round)
}

// orphan: an attachment that an earlier controller left and no pod wants is deleted.
func orphan(t *testing.T, r *rig, volume, node string) {
	t.Helper()
	ctx, cancel := limited(t.Context())
	defer cancel()
	must(t, r.made(ctx, volume, node))
	_, err := r.observer.when(ctx, volumeHeld(node, volume))
	must(t, err)
	must(t, r.start(planeBelay))
	_, err = r.observer.when(ctx, volumeDetached(node, volume))
	must(t, err)
}

// made makes an attachment under the name that every controller computes.
func (r *rig) made(ctx context.Context, volume, node string) error {
	_, err := r.client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(volume, driverName, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}, metav1.CreateOptions{})
	return err
}

// deletedByHand: an attachment that a person deletes is created again, and the pod's event is repeated: its count is
// incremented, which is a patch.
func deletedByHand(t *testing.T, r *rig, volume, node string) {
	t.Helper()
	ctx, cancel := limited(t.Context())
	defer cancel()
	pod, err := r.newPod(ctx, volume)
	must(t, err)
	_, err = r.attach(ctx, pod, volume, node)
	must(t, err)
	untilAsked(t, r, "patch events", func(ctx context.Context, _ int) {
		r.observer.forget(volumeDetached(node, volume), volumeHeld(node, volume))
		must(t, r.client.StorageV1().VolumeAttachments().Delete(ctx, kube.AttachmentName(volume, driverName, node), metav1.DeleteOptions{}))
		_, err := r.observer.when(ctx, volumeHeld(node, volume))
		must(t, err)
		_, err = r.observer.when(ctx, volumeReported(node, volume))
		must(t, err)
	})
	ctx, cancel = limited(t.Context())
	defer cancel()
	_, err = r.detach(ctx, pod, volume, node)
	must(t, err)
}

// busyNode: a report on a Node that changes all the time conflicts, and the Node is read again.
func busyNode(t *testing.T, r *rig, volume, node string) {
	t.Helper()
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		for i := 0; writing.Err() == nil; i++ {
			body := fmt.Appendf(nil, `{"metadata":{"labels":{"busy":"%d"}}}`, i)
			_, err := r.client.CoreV1().Nodes().Patch(writing, node, types.MergePatchType, body, metav1.PatchOptions{})
			if err != nil && writing.Err() == nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	untilAsked(t, r, "get nodes", func(ctx context.Context, _ int) {
		pod, err := r.newPod(ctx, volume)
		must(t, err)
		_, err = r.attach(ctx, pod, volume, node)
		must(t, err)
		_, err = r.detach(ctx, pod, volume, node)
		must(t, err)
	})
	stop()
	must(t, <-ended)
}

// madeByHand: another client creates the attachment at the same moment as the controller; the one that comes second
// reads what exists.
func madeByHand(t *testing.T, r *rig, volume, node string) {
	t.Helper()
	var alone time.Duration // how long the controller took without anybody
	untilAsked(t, r, "get volumeattachments", func(ctx context.Context, round int) {
		pod, err := r.newPod(ctx, volume)
		must(t, err)
		r.observer.forget(volumeHeld(node, volume), volumeReported(node, volume), volumeDetached(node, volume))
		must(t, r.bind(ctx, pod, node))
		if began := time.Now(); round%13 == 0 {
			_, err = r.observer.when(ctx, volumeHeld(node, volume))
			must(t, err)
			alone = time.Since(began)
		}
		// Around the moment in which the watch brings the pod to the controller.
		time.Sleep(alone * time.Duration(round%13) / 13)
		if err := r.made(ctx, volume, node); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		_, err = r.observer.when(ctx, volumeReported(node, volume))
		must(t, err)
		_, err = r.detach(ctx, pod, volume, node)
		must(t, err)
	})
}

// unstreamed: an API server that cannot begin a watch with the existing objects, as before 1.34, gets list requests.
func unstreamed(t *testing.T, r *rig) {
	t.Helper()
	must(t, r.start(planeBelay, "KUBE_FEATURE_WatchListClient=false"))
	must(t, r.cycle(t.Context(), 0, &samples{}))
	must(t, r.stop(t.Context()))
}

func right(verb, group, resource, subresource string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	if group != "" {
		resource += "." + group
	}
	return verb + " " + resource
}

// shippedRules reads what deploy/belay-controller grants.
func shippedRules(t *testing.T) map[string]bool {
	t.Helper()
	files, err := fs.Glob(deploy.Files, "belay-controller/*.yaml")
	must(t, err)
	granted := map[string]bool{}
	for _, file := range files {
		content, err := fs.ReadFile(deploy.Files, file)
		must(t, err)
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
			var role rbacv1.ClusterRole // a Role has the same fields
			err := decoder.Decode(&role)
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			if role.Kind != "ClusterRole" && role.Kind != "Role" {
				continue
			}
			for _, rule := range role.Rules {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, verb := range rule.Verbs {
							name, subresource, _ := strings.Cut(resource, "/")
							granted[right(verb, group, name, subresource)] = true
						}
					}
				}
			}
		}
	}
	if len(granted) == 0 {
		t.Fatal("no rules were found in deploy/")
	}
	return granted
}
