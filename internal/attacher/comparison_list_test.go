package attacher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

func entry(handle string, nodeIDs ...string) csi.PublishedVolume {
	return csi.PublishedVolume{VolumeHandle: handle, Known: true, NodeIDs: nodeIDs}
}

func TestListIsReadWholeOrNotAtAll(t *testing.T) {
	stale := status.Error(codes.Aborted, "no such token")
	// pages answers in order, whatever the token is; it checks that the token is the last page's.
	type answer struct {
		page csi.VolumePage
		err  error
		took time.Duration
	}
	next := func(token string, volumes ...csi.PublishedVolume) answer {
		return answer{page: csi.VolumePage{Published: volumes, Next: token}}
	}
	failing := func(err error) answer { return answer{err: err} }
	slow := func(a answer, took time.Duration) answer { a.took = took; return a }
	tests := map[string]struct {
		answers []answer
		want    map[string]*publication.Entry // nil: an error
		tokens  []string                      // sent
	}{
		"one page": {[]answer{next("", entry("v1", "n1"), entry("v2"))},
			map[string]*publication.Entry{"v1": {NodeIDs: []string{"n1"}}, "v2": {}}, []string{""}},
		"volumes that nobody asked for are dropped": {[]answer{next("", entry("v1", "n1"), entry("other", "n1"))},
			map[string]*publication.Entry{"v1": {NodeIDs: []string{"n1"}}, "v2": {}}, []string{""}},
		"three pages": {[]answer{next("a", entry("v1", "n1")), next("b"), next("", entry("v2", "n2"))},
			map[string]*publication.Entry{"v1": {NodeIDs: []string{"n1"}}, "v2": {NodeIDs: []string{"n2"}}}, []string{"", "a", "b"}},
		"duplicates are merged": {[]answer{next("a", entry("v1", "n1")), next("", entry("v1", "n2"), entry("v1"))},
			map[string]*publication.Entry{"v1": {NodeIDs: []string{"n1", "n2"}}, "v2": {}}, []string{"", "a"}},
		"of an entry without a status nothing is known": {[]answer{next("", csi.PublishedVolume{VolumeHandle: "v1"}, entry("v1", "n1"))},
			map[string]*publication.Entry{"v2": {}}, []string{""}},
		"fails on the second page": {[]answer{next("a", entry("v1", "n1")), failing(status.Error(codes.Internal, "no"))}, nil, []string{"", "a"}},
		"a token repeats":          {[]answer{next("a"), next("b"), next("a")}, nil, []string{"", "a", "b"}},
		"a token leads to itself":  {[]answer{next("a"), next("a")}, nil, []string{"", "a"}},
		"a stale token: from the beginning": {[]answer{next("a", entry("v1", "n1")), failing(stale), next("b", entry("v1", "n2")), next("")},
			map[string]*publication.Entry{"v1": {NodeIDs: []string{"n2"}}, "v2": {}}, []string{"", "a", "", "b"}},
		"stale tokens for ever": {[]answer{next("a"), failing(stale), next("a"), failing(stale), next("a"), failing(stale), next("a"), failing(stale)},
			nil, []string{"", "a", "", "a", "", "a", "", "a"}},
		"aborted without a token": {[]answer{failing(stale)}, nil, []string{""}},
		// external-attacher#356
		"each page takes nearly as long as it may": {[]answer{slow(next("a", entry("v1", "n1")), 14*time.Second), slow(next("b"), 14*time.Second),
			slow(next("c"), 14*time.Second), slow(next(""), 14*time.Second)},
			map[string]*publication.Entry{"v1": {NodeIDs: []string{"n1"}}, "v2": {}}, []string{"", "a", "b", "c"}},
		"one page takes too long": {[]answer{next("a"), slow(next(""), 16*time.Second)}, nil, []string{"", "a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tokens []string
				l := lister{timeout: 15 * time.Second, page: func(ctx context.Context, _ int32, token string) (csi.VolumePage, error) {
					if len(tokens) == len(tt.answers) {
						return csi.VolumePage{}, errors.New("asked for one page too many")
					}
					a := tt.answers[len(tokens)]
					tokens = append(tokens, token)
					return a.page, within(ctx, a.took, a.err)
				}}
				got, _, err := l.read(t.Context(), []string{"v1", "v2"})
				if (err == nil) != (tt.want != nil) {
					t.Errorf("error %v", err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("volumes (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.tokens, tokens); diff != "" {
					t.Errorf("tokens (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// within returns err after a while, unless the caller's context ends before.
func within(ctx context.Context, took time.Duration, err error) error {
	select {
	case <-time.After(took):
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// A list that never ends is abandoned.
func TestListThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, pages := time.Now(), 0
		l := lister{timeout: 15 * time.Second, page: func(ctx context.Context, _ int32, _ string) (csi.VolumePage, error) {
			pages++
			return csi.VolumePage{Next: strconv.Itoa(pages)}, within(ctx, 10*time.Second, nil)
		}}
		_, _, err := l.read(t.Context(), nil)
		if took := time.Since(begun); err == nil || took != listTimeout {
			t.Errorf("ended after %v with %v, want an error after %v", took, err, listTimeout)
		}
	})
}

// 50,000 volumes over a socket: all at once, which is more than gRPC takes by default, and in
// pages. (That each page has its own deadline TestListIsReadWholeOrNotAtAll has.)
func TestFiftyThousandVolumes(t *testing.T) {
	const volumes = 50_000
	d := startDriver(t, canList...)
	handle := func(i int) string { return fmt.Sprintf("projects/some-project/zones/some-zone/disks/pvc-%032d", i) }
	all := &csispec.ListVolumesResponse{}
	var handles []string
	for i := range volumes {
		all.Entries = append(all.Entries, listed(handle(i), "projects/some-project/zones/some-zone/instances/node-"+strconv.Itoa(i%1000)))
		handles = append(handles, handle(i))
	}
	if size := proto.Size(all); size < 4<<20 {
		t.Fatalf("the list has %d bytes: no test of large ones", size)
	}
	tests := map[string]struct {
		maxEntries int32
		pages      int
	}{
		"at once":  {0, 1},
		"in pages": {500, 100},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d.Lists = 0
			d.List = func(_ context.Context, r *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
				if r.GetMaxEntries() != tt.maxEntries {
					t.Errorf("max_entries %d, want %d", r.GetMaxEntries(), tt.maxEntries)
				}
				from, _ := strconv.Atoi("0" + r.GetStartingToken())
				reply := &csispec.ListVolumesResponse{Entries: all.Entries[from:]}
				if n := int(r.GetMaxEntries()); n > 0 && from+n < volumes {
					reply.Entries, reply.NextToken = all.Entries[from:from+n], strconv.Itoa(from+n)
				}
				return reply, nil
			}
			w := &world{t: t, driver: d}
			l := lister{page: w.controller().ListVolumes, maxEntries: tt.maxEntries, timeout: wait.Timeout}
			begun := time.Now()
			got, entries, err := l.read(t.Context(), handles)
			t.Logf("%d entries after %v", entries, time.Since(begun))
			if err != nil || entries != volumes || d.Lists != tt.pages {
				t.Fatalf("%d entries in %d pages, %v", entries, d.Lists, err)
			}
			for i, h := range handles {
				if want := "projects/some-project/zones/some-zone/instances/node-" + strconv.Itoa(i%1000); len(got[h].NodeIDs) != 1 || got[h].NodeIDs[0] != want {
					t.Fatalf("%s is at %v, want %s", h, got[h].NodeIDs, want)
				}
			}
		})
	}
}

// listOnly is a driver that answers in the process, so that time can be made to pass.
func listOnly(t *testing.T, list func(ctx context.Context) (*csispec.ListVolumesResponse, error)) *csi.Controller {
	t.Helper()
	conn := (&csidriver.Driver{
		ControllerServices: canList,
		List: func(ctx context.Context, _ *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
			return list(ctx)
		},
	}).Connect(t)
	t.Cleanup(func() { _ = conn.Close() })
	controller, err := csi.NewController(t.Context(), conn)
	must(t, err)
	return controller
}

// The first comparison is at once, the next one a pause after the last has ended, however long it
// took and whether it failed; none overlaps another.
func TestComparisonsFollowEachOtherAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var begins []string
		controller := listOnly(t, func(ctx context.Context) (*csispec.ListVolumesResponse, error) {
			begins = append(begins, time.Since(begun).String())
			switch len(begins) {
			case 1:
				return &csispec.ListVolumesResponse{}, within(ctx, 10*time.Second, nil)
			case 2:
				return nil, within(ctx, time.Hour, nil) // until the page's deadline
			case 3:
				return nil, status.Error(codes.Internal, "no")
			}
			return &csispec.ListVolumesResponse{}, nil
		})
		a, err := New(Config{Client: fake.NewClientset(), Driver: "disk.test", WorkerThreads: 1, Controller: controller,
			ReconcileSync: time.Minute, Timeout: 90 * time.Second})
		must(t, err)
		ctx, stop := context.WithTimeout(t.Context(), 6*time.Minute)
		defer stop()
		a.compareWithDriver(ctx)
		if diff := cmp.Diff([]string{"0s", "1m10s", "3m40s", "4m40s", "5m40s"}, begins); diff != "" {
			t.Errorf("begins (-want +got):\n%s", diff)
		}
		a.shutDown()
	})
}

// Without a pause there are no comparisons.
func TestNoComparisonWithoutAPause(t *testing.T) {
	controller := listOnly(t, func(context.Context) (*csispec.ListVolumesResponse, error) {
		t.Error("asked for a list")
		return nil, errors.New("no")
	})
	a, err := New(Config{Client: fake.NewClientset(), Driver: "disk.test", WorkerThreads: 1, Controller: controller})
	must(t, err)
	defer a.shutDown()
	a.compareWithDriver(t.Context())
}

// What a comparison costs besides the list: 20,000 attached volumes on 200 nodes.
//
//	go test ./internal/attacher -run none -bench Comparison -benchmem
func BenchmarkComparison(b *testing.B) {
	const volumes, nodes = 20_000, 200
	a, err := New(Config{Client: fake.NewClientset(), Driver: "disk.test", WorkerThreads: 1})
	must(b, err)
	defer a.shutDown()
	w := &world{driver: &csidriver.Driver{Name: "disk.test"}, prefix: "disk"}
	for i := range nodes {
		_ = a.objects.csiNodeInformer.GetStore().Add(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "disk.test", NodeID: fmt.Sprint("id-", i)}}}})
	}
	published := map[string]string{}
	for i := range volumes {
		pv := csiPV(w, fmt.Sprint("pv-", i))
		_ = a.objects.volumeInformer.GetStore().Add(pv)
		published[pv.Name] = fmt.Sprint("id-", i%nodes)
		_ = a.objects.attachmentInformer.GetStore().Add(&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("csi-", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: strconv.Itoa(i + 1),
				Finalizers: []string{a.finalizer}, Annotations: map[string]string{kube.NodeIDAnnotation: fmt.Sprint("id-", i%nodes)}},
			Spec:   storagev1.VolumeAttachmentSpec{Attacher: "disk.test", NodeName: fmt.Sprint("node-", i%nodes), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}},
			Status: storagev1.VolumeAttachmentStatus{Attached: true},
		})
	}
	r := reconciler{attacher: a, comparison: publication.NewComparison(time.Minute)}
	r.list = lister{timeout: time.Minute, page: func(context.Context, int32, string) (csi.VolumePage, error) {
		page := csi.VolumePage{Published: make([]csi.PublishedVolume, 0, volumes)}
		for handle, id := range published {
			page.Published = append(page.Published, entry(handle, id))
		}
		return page, nil
	}}
	for b.Loop() {
		r.pass(b.Context())
	}
	if n := a.queue.Len(); n != 0 {
		b.Errorf("%d drifts", n)
	}
}
