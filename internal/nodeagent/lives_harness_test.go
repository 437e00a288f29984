package nodeagent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// transcript records what happens to a node's volume. Each action of the test begins a section, which lists the agent's
// writes of volumesInUse, its records and the driver's calls in their order. Events and the CSINode are written by
// other goroutines: they end the section, so that the test has to wait for them.
type transcript struct {
	*world
	agent   *Agent
	stop    func()
	options []func(*Config)

	mu sync.Mutex
	// Under mu:
	text, section, aside []string
	stageConfirmed       []string          // waits for its place: see look
	records              map[string]string // what the files say, by name
	names                []string          // what is replaced by what, first match first
	attachments          int
	drivers              string // of the CSINode, as it was written last
	// answers are the driver's actions at its next calls, by call; after an error it does nothing more.
	answers map[string][]answer
}

// answer is what the driver does at one call.
type answer struct {
	held bool // until the test frees it, or longer than the agent waits
	do   func() error
}

// playLife plays a life and compares its transcript with the stored one.
func playLife(t *testing.T, w *world, name string, play func(*transcript)) {
	t.Helper()
	s := &transcript{
		world: w, records: map[string]string{}, answers: map[string][]answer{},
		names: []string{w.root, "ROOT", w.driverName(), "DRIVER", "h-" + w.name + "-", "h-", w.name + "-", "pv-", w.name, "NODE"},
	}
	w.driver.Intercept(s.calls)
	play(s)
	s.ends()
	got := s.plain()
	file := filepath.Join("testdata", "lives", name+".txt")
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s; -update writes it again (-want +got):\n%s", file, diff)
	}
}

var (
	times8601 = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	hashes    = regexp.MustCompile(`[0-9a-f]{64}`)
)

// plain is the transcript without what differs from run to run.
func (s *transcript) plain() string {
	text := strings.NewReplacer(s.names...).Replace(strings.Join(s.text, "\n") + "\n")
	return hashes.ReplaceAllString(times8601.ReplaceAllString(text, "TIME"), "HASH")
}

func line(who, format string, args ...any) string {
	return fmt.Sprintf("%-10s  %s", who, fmt.Sprintf(format, args...))
}

// say begins a section.
func (s *transcript) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	s.text = slices.Concat(s.text, s.section, s.stageConfirmed, s.aside)
	s.section, s.stageConfirmed, s.aside = []string{line(who, format, args...)}, nil, nil
}

// note adds to the section.
func (s *transcript) note(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	s.section = append(s.section, line(who, format, args...))
}

func (s *transcript) noteAside(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aside = append(s.aside, line(who, format, args...))
}

// sees waits until the section has each of the texts, and as often as it is given.
func (s *transcript) sees(texts ...string) {
	s.Helper()
	want := map[string]int{}
	for _, text := range texts {
		want[text]++
	}
	wait.Until(s, fmt.Sprintf("lines with %q", texts), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.look()
		all := strings.Join(slices.Concat(s.section[1:], s.aside), "\n")
		return !slices.ContainsFunc(texts, func(text string) bool { return strings.Count(all, text) < want[text] })
	})
}

// onDisk are the records by file, in words.
func (s *transcript) onDisk() map[string]string {
	files, _ := filepath.Glob(filepath.Join(s.root, recordsDir, "*.json"))
	now := map[string]string{}
	for _, file := range files {
		if mount.IsTemporary(file) {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // removed since
		}
		record, err := nodevolume.DecodeRecord(raw)
		if err != nil {
			s.Errorf("record %s: %v", file, err)
		}
		now[file] = s.recordWords(record)
	}
	return now
}

// look writes down how the records have changed since the last time. The agent saves that a stage is confirmed at some time between the
// stage and the end of the publish, so that its line always stands before that of the confirmed publish, or at the end of the section.
// The caller holds mu.
func (s *transcript) look() {
	now := s.onDisk()
	for again := s.onDisk(); !maps.Equal(now, again); again = s.onDisk() { // one may be older than another that was read later
		now = again
	}
	var lines []string
	for file, was := range s.records {
		if _, ok := now[file]; !ok {
			what, _, _ := strings.Cut(was, ":")
			lines = append(lines, line("record", "%s: removed", what))
		}
	}
	published := false
	for file, is := range now {
		switch confirmed := strings.HasSuffix(is, ", confirmed"); {
		case s.records[file] == is:
		case confirmed && strings.HasPrefix(is, nodevolume.StageKind):
			s.stageConfirmed = append(s.stageConfirmed, line("record", "%s", is))
		default:
			published = published || confirmed
			lines = append(lines, line("record", "%s", is))
		}
	}
	s.records = now
	if published {
		s.section, s.stageConfirmed = append(s.section, s.stageConfirmed...), nil
	}
	slices.Sort(lines)
	s.section = append(s.section, lines...)
}

func (s *transcript) recordWords(r nodevolume.Record) string {
	words := []string{r.BootID}
	for _, word := range []struct {
		text string
		is   bool
	}{
		{"in use", r.InUse}, {"guessed", r.Guessed}, {r.AttachmentUID, r.AttachmentUID != ""}, {"inline", r.Inline}, {"block", r.Block},
		{"one pod only", r.SolePod}, {"confirmed", r.Confirmed}, {"leaving", r.Leaving},
	} {
		if word.is {
			words = append(words, word.text)
		}
	}
	what := r.Kind
	if r.Kind == nodevolume.PublishKind {
		what += " for pod " + r.Pod.Name
	}
	return what + ": " + strings.Join(words, ", ")
}

// calls stands between the agent and the driver. It asks the API itself whether the Node lists the volume in use.
func (s *transcript) calls(call string, request any, do func() (any, error)) (any, error) {
	r, ok := request.(interface{ GetVolumeId() string })
	if !ok {
		return do()
	}
	words := []string{call, cmp.Or(map[bool]string{strings.HasPrefix(r.GetVolumeId(), "h-"): r.GetVolumeId()}[true], "csi-HASH")}
	switch r := request.(type) {
	case *csispec.NodeStageVolumeRequest:
		words = append(words, "at", r.StagingTargetPath, accessWords(r.VolumeCapability), r.PublishContext["device"])
	case *csispec.NodePublishVolumeRequest:
		words = append(words, "at", r.TargetPath, accessWords(r.VolumeCapability), r.PublishContext["device"])
	case *csispec.NodeUnpublishVolumeRequest:
		words = append(words, "at", r.TargetPath)
	case *csispec.NodeUnstageVolumeRequest:
		words = append(words, "at", r.StagingTargetPath)
	case *csispec.NodeExpandVolumeRequest:
		words = append(words, "at", r.VolumePath, fmt.Sprint("to ", r.CapacityRange.GetRequiredBytes()))
	}
	if slices.Contains(s.node().Status.VolumesInUse, s.unique(r.GetVolumeId())) {
		words = append(words, "(listed in use)")
	}
	s.note("agent", "calls %s", strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
	s.mu.Lock()
	var next answer
	if planned := s.answers[call]; len(planned) > 0 {
		next, s.answers[call] = planned[0], planned[1:]
	}
	s.mu.Unlock()
	if next.do != nil {
		if err := next.do(); err != nil {
			return nil, err
		}
	}
	return do()
}

func accessWords(c *csispec.VolumeCapability) string {
	if c.GetBlock() != nil {
		return "block, " + c.AccessMode.Mode.String()
	}
	return c.GetMount().GetFsType() + ", " + c.AccessMode.Mode.String()
}

// refuses has the driver answer the next such call with an error.
func (s *transcript) refuses(call string, code codes.Code, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[call] = append(s.answers[call], answer{do: func() error {
		s.note("driver", "answers %s: %s", code, text)
		return status.Error(code, text)
	}})
}

// holds has the driver wait at the next such call, until free lets it do its work.
func (s *transcript) holds(call string) (free func()) {
	proceed := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[call] = append(s.answers[call], answer{held: true, do: func() error { <-proceed; return nil }})
	free = sync.OnceFunc(func() { close(proceed) })
	s.Cleanup(free)
	return free
}

// writes notes what the agent writes to the API server.
func (s *transcript) writes(c *Config) {
	c.RESTConfig = rest.CopyConfig(c.RESTConfig)
	c.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			var body []byte
			if r.Method != http.MethodGet && r.Body != nil {
				body, _ = io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			response, err := next.RoundTrip(r)
			if err == nil && body != nil && response.StatusCode < http.StatusMultipleChoices {
				answer, _ := io.ReadAll(response.Body)
				response.Body = io.NopCloser(bytes.NewReader(answer))
				s.written(r, body, answer)
			}
			return response, err
		})
	})
	write := (*mount.Root).Write
	c.writeRecord = func(root *mount.Root, name string, content []byte, durability mount.Durability) error {
		err := write(root, name, content, durability)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.look()
		return err
	}
}

func (s *transcript) written(r *http.Request, body, answer []byte) {
	var patch struct{ Status map[string]any }
	if err := json.Unmarshal(body, &patch); err == nil {
		if list, writes := patch.Status["volumesInUse"]; writes { // null is an empty one
			some, _ := list.([]any)
			s.note("agent", "writes volumesInUse: %v", some)
			return
		}
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(answer, nil, nil)
	if err != nil {
		return
	}
	switch object := object.(type) {
	case *corev1.Event:
		if r.Method == http.MethodPost {
			s.noteAside("event", "%s %s on %s %s: %s", object.Type, object.Reason, object.InvolvedObject.Kind, object.InvolvedObject.Name, object.Message)
		}
	case *corev1.PersistentVolumeClaim:
		s.note("agent", "writes the status of claim %s: %+v", object.Name, stateOf(object))
	case *storagev1.CSINode:
		var names []string
		for _, driver := range object.Spec.Drivers {
			names = append(names, driver.Name)
		}
		if now := fmt.Sprint(names); s.isNews(now) {
			s.noteAside("agent", "writes CSINode: %s", now)
		}
	}
}

func (s *transcript) isNews(drivers string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.drivers
	s.drivers = drivers
	return was != drivers
}

// patient is for lives without an event of a long wait: on a busy machine, each wait may be one.
func patient(c *Config) { c.waitEventDelay, c.claimEventDelay = time.Hour, time.Hour }

// starts runs an agent, and says how, until its driver is registered if it is there.
func (s *transcript) starts(how string, options ...func(*Config)) {
	s.Helper()
	s.say("agent", "%s", how)
	s.agent, s.stop = s.world.agent(slices.Concat([]func(*Config){s.writes, patient}, s.options, options)...)
	if _, err := os.Stat(s.driver.Address); err == nil {
		s.driver.Registered()
	}
	wait.Until(s, "the agent is ready", func() bool { return s.agent.Ready() == nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aside = nil // the first CSINode may be without the driver
}

func (s *transcript) dies(how string) {
	s.stop()
	s.say("agent", "%s", how)
}

// named has a pod's UID replaced by its name.
func (s *transcript) named(pod *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, string(pod.UID), "uid-of-"+pod.Name)
	return pod
}

func (s *transcript) sets(pod *corev1.Pod) {
	s.say("pods", "%s is set, with %s", pod.Name, pod.Spec.Volumes[0].Name)
	s.agent.SetPod(pod)
}

func (s *transcript) removes(pod *corev1.Pod) {
	s.say("pods", "%s is removed: its containers have ended", pod.Name)
	s.agent.RemovePod(pod.UID)
}

// attaches is controller and attacher.
func (s *transcript) attaches(handle string) {
	s.Helper()
	s.say("controller", "attaches %s as attachment-%d and reports it", handle, s.attachments+1)
	s.attach(handle)
	s.attachmentNamed(handle)
}

// detaches is controller and attacher, once the volume is out of use.
func (s *transcript) detaches(handle string) {
	s.Helper()
	s.sees("writes volumesInUse: []")
	s.say("controller", "detaches %s", handle)
	must(s, s.detach(handle))
}

func (s *transcript) attachmentNamed(handle string) {
	s.Helper()
	va, err := s.admin.StorageV1().VolumeAttachments().Get(s.ctx, kube.AttachmentName(handle, s.driverName(), s.name), metav1.GetOptions{})
	must(s, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachments++
	s.names = append(s.names, string(va.UID), fmt.Sprintf("attachment-%d", s.attachments))
}

// isReady waits until a pod has its volumes.
func (s *transcript) isReady(pod *corev1.Pod) {
	s.Helper()
	for _, m := range s.mounted(s.agent, pod) {
		s.note("agent", "%s is ready: %s is at %s", pod.Name, m.VolumeName, m.Path)
	}
}

// waits until the wait for a pod's volumes reports that reason, and records it.
func (s *transcript) waits(pod *corev1.Pod, reason nodevolume.Reason) {
	s.Helper()
	s.waitSays(s.agent, pod, string(reason))
	s.note("agent", "%s waits: %s", pod.Name, reason)
}

// ends stops the agent and records what is left.
func (s *transcript) ends() {
	s.Helper()
	s.stop()
	s.say("node", "has %d mounts, %v on disk, %v in use", len(s.driver.Mounts), s.leftovers(), s.node().Status.VolumesInUse)
	s.text = slices.Concat(s.text, s.section, s.stageConfirmed)
}

// runningContainer is a runtime of one container.
type runningContainer struct{ runs atomic.Bool }

func (r *runningContainer) Ended(context.Context, string) (release func(), err error) {
	if r.runs.Load() {
		return nil, errors.New("container c is RUNNING")
	}
	return func() {}, nil
}
