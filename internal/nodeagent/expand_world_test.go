package nodeagent

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"belay.dev/belay/internal/testing/wait"
)

const (
	oneGi = int64(1) << 30
	twoGi = 2 * oneGi
)

// expandable is a world whose driver expands, with a claim "data" of 1 GiB that may grow.
func expandable(t *testing.T, options ...volumeOptions) *world {
	t.Helper()
	return newWorld(t, noAttach).expandable(options...)
}

func (w *world) expandable(options ...volumeOptions) *world {
	w.Helper()
	w.driver.NodeServices = append(w.driver.NodeServices, csispec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	_, err := w.admin.StorageV1().StorageClasses().Create(w.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.name}, Provisioner: w.driverName(), AllowVolumeExpansion: new(true),
	}, metav1.CreateOptions{})
	must(w, err)
	w.volume("data", append(options, func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = w.name })...)
	w.changeClaim(func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage("1Gi") })
	return w
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func (w *world) claim() *corev1.PersistentVolumeClaim {
	w.Helper()
	claim, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Get(w.ctx, "data", metav1.GetOptions{})
	must(w, err)
	return claim
}

// changeClaim writes the claim's status.
func (w *world) changeClaim(change func(*corev1.PersistentVolumeClaim)) {
	w.Helper()
	must(w, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		claim := w.claim()
		change(claim)
		_, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
		return err
	}))
}

// ask has a user ask for another size.
func (w *world) ask(size string) {
	w.Helper()
	must(w, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		claim := w.claim()
		claim.Spec.Resources.Requests = storage(size)
		_, err := w.admin.CoreV1().PersistentVolumeClaims(w.name).Update(w.ctx, claim, metav1.UpdateOptions{})
		return err
	}))
}

// enlarge plays the controller's part: the volume has the size now.
func (w *world) enlarge(size string) {
	w.Helper()
	pv, err := w.admin.CoreV1().PersistentVolumes().Get(w.ctx, w.name+"-data", metav1.GetOptions{})
	must(w, err)
	pv.Spec.Capacity = storage(size)
	_, err = w.admin.CoreV1().PersistentVolumes().Update(w.ctx, pv, metav1.UpdateOptions{})
	must(w, err)
}

// resizer is the kind of external-resizer that plays along.
type resizer bool

const (
	tracks resizer = true  // writes allocatedResourceStatuses (KEP-1790)
	legacy resizer = false // writes the condition alone
)

// grow is a user and a resizer: the volume has the size, the node is next.
func (w *world) grow(size string, kind resizer) {
	w.Helper()
	pending := func(c *corev1.PersistentVolumeClaim) {
		c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue,
		})
	}
	w.ask(size)
	if kind == legacy {
		w.changeClaim(pending)
		w.enlarge(size)
		return
	}
	w.begin(size)
	w.enlarge(size)
	w.changeClaim(func(c *corev1.PersistentVolumeClaim) {
		pending(c)
		setResizeStatus(&c.Status, corev1.PersistentVolumeClaimNodeResizePending)
	})
}

// begin plays a resizer that records its expansion in the status before it starts.
func (w *world) begin(size string) {
	w.Helper()
	w.changeClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Status.AllocatedResources = storage(size)
		setResizeStatus(&c.Status, corev1.PersistentVolumeClaimControllerResizeInProgress)
	})
}

// claimState is what tests compare of a claim.
type claimState struct {
	Capacity, Status string
	Conditions       []string
}

func stateOf(claim *corev1.PersistentVolumeClaim) claimState {
	s := claimState{
		Capacity: claim.Status.Capacity.Storage().String(), Status: string(claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]),
	}
	for _, c := range claim.Status.Conditions {
		text := string(c.Type)
		if c.Message != "" {
			text += ": " + c.Message
		}
		s.Conditions = append(s.Conditions, text)
	}
	slices.Sort(s.Conditions)
	return s
}

func (w *world) wantClaim(want claimState) {
	w.Helper()
	var got claimState
	wait.Until(w, fmt.Sprintf("the claim is %+v", want), func() bool {
		got = stateOf(w.claim())
		return cmp.Equal(want, got)
	})
}

func (w *world) wantClaimNow(want claimState) {
	w.Helper()
	if diff := cmp.Diff(want, stateOf(w.claim())); diff != "" {
		w.Errorf("claim (-want +got):\n%s", diff)
	}
}

// aboutClaim has untilEvent look for events of the claim.
func (w *world) aboutClaim() *corev1.Pod {
	claim := w.claim()
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "of the claim " + claim.Name, UID: claim.UID}}
}

func (w *world) untilExpanded(times int) {
	w.Helper()
	wait.Until(w, fmt.Sprintf("expanded %d times", times), func() bool { return w.expansions() >= times })
}

func (w *world) expansions() (n int) {
	for _, call := range w.driver.Made() {
		if strings.HasPrefix(call, "Expand") {
			n++
		}
	}
	return n
}

func (w *world) wantCalls(want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.driver.Made()); diff != "" {
		w.Errorf("calls (-want +got):\n%s", diff)
	}
}

// often reads claims again every 20 ms.
func often(c *Config) { c.SyncPeriod = 20 * time.Millisecond }

// reads counts how often the agent read a claim.
type reads struct {
	mu sync.Mutex
	n  int
}

func (r *reads) count(c *Config) {
	c.RESTConfig = rest.CopyConfig(c.RESTConfig)
	c.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/persistentvolumeclaims/") {
				r.mu.Lock()
				r.n++
				r.mu.Unlock()
			}
			return next.RoundTrip(request)
		})
	})
}

// holdAnswer holds back the answers to writes to claims that contain the word, until the channel is closed.
func holdAnswer(c *Config, word string, until <-chan struct{}) {
	c.RESTConfig = rest.CopyConfig(c.RESTConfig)
	c.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			held := false
			if request.Method == http.MethodPatch && strings.Contains(request.URL.Path, "/persistentvolumeclaims/") {
				body, err := io.ReadAll(request.Body)
				if err != nil {
					return nil, err
				}
				held = bytes.Contains(body, []byte(word))
				request = request.Clone(request.Context())
				request.Body = io.NopCloser(bytes.NewReader(body))
			}
			answer, err := next.RoundTrip(request)
			if held {
				select {
				case <-until:
				case <-request.Context().Done():
				}
			}
			return answer, err
		})
	})
}

// more waits until claims were read n more times from now on.
func (w *world) more(r *reads, n int) {
	w.Helper()
	read := func() int { r.mu.Lock(); defer r.mu.Unlock(); return r.n }
	end := read() + n
	wait.Until(w, fmt.Sprintf("claims are read %d more times", n), func() bool { return read() >= end })
}

func (w *world) refuseExpand(code codes.Code, text string, attempts ...int) {
	w.driver.SetBefore(func(method, _ string, attempt int) error {
		if method == "Expand" && (len(attempts) == 0 || slices.Contains(attempts, attempt)) {
			return status.Error(code, text)
		}
		return nil
	})
}

// refuseFinally has the first most expansions end with a final error, counted in made. Later ones get no answer.
func (w *world) refuseFinally(made *atomic.Int32, most int32) {
	w.driver.SetBefore(func(method, _ string, _ int) error {
		switch {
		case method != "Expand":
			return nil
		case made.Load() < most:
			made.Add(1)
			return status.Error(codes.Internal, "broken")
		default:
			return status.Error(codes.Unavailable, "no answer")
		}
	})
}
