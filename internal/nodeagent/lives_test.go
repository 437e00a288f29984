package nodeagent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// TestLives plays whole lives of a volume on a node, against a real API server. The transcripts say who did what, in which order.
func TestLives(t *testing.T) {
	for name, tc := range map[string]struct {
		play func(*transcript)
		// driver changes the CSIDriver; without changes there is none.
		driver []func(*storagev1.CSIDriver)
	}{
		"ordinary":                {play: lifeOrdinary},
		"restart-while-staging":   {play: lifeRestartWhileStaging},
		"restart-while-mounted":   {play: lifeRestartWhileMounted},
		"restart-while-unstaging": {play: lifeRestartWhileUnstaging},
		"driver-refuses":          {play: lifeDriverRefuses},
		"no-answer":               {play: lifeNoAnswer},
		"no-answer-and-pod-gone":  {play: lifeNoAnswerAndPodGone},
		"reattached":              {play: lifeReattached},
		"container-outlives-pod":  {play: lifeContainerOutlivesPod},
		"inline":                  {lifeInline, []func(*storagev1.CSIDriver){modes(persistent, ephemeral)}},
		"block":                   {play: lifeBlock},
		"expansion":               {play: lifeExpansion},
		"driver-away":             {play: lifeDriverAway},
		"two-pods-one-at-a-time":  {play: lifeReadWriteOncePod},
		"reboot":                  {play: lifeReboot},
		"no-attach":               {lifeNoAttach, []func(*storagev1.CSIDriver){noAttach}},
	} {
		t.Run(name, func(t *testing.T) { playLife(t, newWorld(t, tc.driver...), name, tc.play) })
	}
}

// settled brings up pod p with volume "data".
func (s *transcript) settled(options ...volumeOptions) (pod *corev1.Pod, handle string) {
	s.Helper()
	handle = s.volume("data", options...)
	s.starts("starts")
	pod = s.named(s.pod("p", "data"))
	s.attached(pod, handle)
	s.isReady(pod)
	return pod, handle
}

// attached sets a pod and attaches its volume when it is in use.
func (s *transcript) attached(pod *corev1.Pod, handle string) {
	s.Helper()
	s.sets(pod)
	s.sees("writes volumesInUse")
	s.attaches(handle)
}

// clears removes the last pod, and detaches the volume once it is out of use.
func (s *transcript) clears(pod *corev1.Pod, handle string) {
	s.Helper()
	s.removes(pod)
	s.detaches(handle)
}

func lifeOrdinary(s *transcript) {
	pod, handle := s.settled()
	s.clears(pod, handle)
}

func lifeNoAttach(s *transcript) {
	s.volume("data")
	s.starts("starts")
	pod := s.named(s.pod("p", "data"))
	s.sets(pod)
	s.isReady(pod)
	s.removes(pod)
	s.sees("stage: removed")
}

// lifeRestartWhileStaging is about an agent that dies before the driver has answered. The driver does its work.
func lifeRestartWhileStaging(s *transcript) {
	handle := s.volume("data")
	s.starts("starts")
	free := s.holds("NodeStageVolume")
	pod := s.named(s.pod("p", "data"))
	s.attached(pod, handle)
	s.sees("calls NodeStageVolume")
	s.dies("is killed")
	s.say("driver", "has staged the volume; the answer is lost")
	free()
	wait.Until(s, "staged", func() bool { points, _ := s.driver.MountPoints(); return len(points) == 1 })
	s.starts("restarts")
	s.sets(pod)
	s.isReady(pod)
	s.clears(pod, handle)
}

func lifeRestartWhileMounted(s *transcript) {
	pod, handle := s.settled()
	s.dies("is killed")
	s.starts("restarts")
	s.sets(pod)
	s.isReady(pod)
	s.dies("is killed")
	s.starts("restarts; the pod went in the meantime")
	s.say("pods", "are all set: there are none")
	s.agent.PodsSynced()
	s.detaches(handle)
}

// lifeRestartWhileUnstaging is about an agent that dies before the driver has answered, and a pod that comes after.
func lifeRestartWhileUnstaging(s *transcript) {
	pod, handle := s.settled()
	free := s.holds("NodeUnstageVolume")
	s.removes(pod)
	s.sees("calls NodeUnstageVolume")
	s.dies("is killed")
	s.say("driver", "has unstaged the volume; the answer is lost")
	free()
	wait.Until(s, "unstaged", func() bool { points, _ := s.driver.MountPoints(); return len(points) == 0 })
	s.starts("restarts")
	s.detaches(handle)
	second := s.named(s.pod("second", "data"))
	s.attached(second, handle)
	s.isReady(second)
	s.clears(second, handle)
}

func lifeDriverRefuses(s *transcript) {
	handle := s.volume("data")
	s.starts("starts")
	s.refuses("NodeStageVolume", codes.Internal, "the array is busy")
	s.refuses("NodeStageVolume", codes.InvalidArgument, "no such volume")
	s.refuses("NodePublishVolume", codes.Internal, "the kernel is busy")
	pod := s.named(s.pod("p", "data"))
	s.attached(pod, handle)
	s.sees("the array is busy (", "no such volume (", "the kernel is busy (")
	s.isReady(pod)
	s.refuses("NodeUnpublishVolume", codes.Internal, "a file is open")
	s.refuses("NodeUnstageVolume", codes.Internal, "the array is busy")
	s.removes(pod)
	s.sees("FailedUnmount on Node", "FailedUnmount on Node")
	s.detaches(handle)
}

// impatient has the agent wait for a short time for the answers that the driver holds back, and only for these: on a busy machine every
// call may take as long.
func (s *transcript) impatient(c *Config) {
	c.callTimeout = func(method string) time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		if planned := s.answers[method]; len(planned) > 0 && planned[0].held {
			return 5 * time.Second
		}
		return defaultRPCTimeout
	}
}

// eventOf has a wait for one of the reasons become an event soon, once its cause is known.
func eventOf(reasons ...nodevolume.Reason) func(*Config) {
	return func(c *Config) {
		c.waitEventDelayOf = func(reason nodevolume.Reason, text string) time.Duration {
			if slices.Contains(reasons, reason) && !strings.Contains(text, errRuntimeNotQueried.Error()) {
				return 5 * time.Second
			}
			return time.Hour
		}
	}
}

func lifeNoAnswer(s *transcript) {
	handle := s.volume("data")
	s.starts("starts", s.impatient)
	s.holds("NodeStageVolume")
	s.holds("NodePublishVolume")
	pod := s.named(s.pod("p", "data"))
	s.attached(pod, handle)
	s.sees("event", "SetUp failed")
	s.isReady(pod)
	s.clears(pod, handle)
}

func lifeNoAnswerAndPodGone(s *transcript) {
	handle := s.volume("data")
	s.starts("starts", s.impatient)
	s.holds("NodeStageVolume")
	s.holds("NodeStageVolume")
	pod := s.named(s.pod("p", "data"))
	s.attached(pod, handle)
	s.sees("did not answer", "calls NodeStageVolume", "calls NodeStageVolume")
	s.removes(pod)
	s.sees("did not answer")
	s.detaches(handle)
}

// lifeReattached is about a volume that was detached by force under a pod that runs.
func lifeReattached(s *transcript) {
	pod, handle := s.settled()
	s.say("admin", "deletes attachment-1; the controller attaches %s again as attachment-2", handle)
	s.reattach(handle)
	s.attachmentNamed(handle)
	second := s.named(s.pod("second", "data"))
	s.sets(second)
	s.waits(second, nodevolume.AttachmentReplaced)
	s.removes(pod)
	s.isReady(second)
	s.clears(second, handle)
}

// lifeContainerOutlivesPod is about a pod that is deleted by force while its container runs, and an agent that restarts
// in the meantime.
func lifeContainerOutlivesPod(s *transcript) {
	runtime := &runningContainer{}
	runtime.runs.Store(true)
	s.options = append(s.options, func(c *Config) { c.Containers = runtime }, eventOf(nodevolume.NotAttached, nodevolume.ContainersMayRun))
	handle := s.volume("data")
	s.starts("starts, and follows the pods of the API")
	following, unfollow := context.WithCancel(s.ctx)
	go s.agent.FollowPods(following)
	s.say("user", "creates pod p, with data")
	pod := s.named(s.pod("p", "data"))
	s.sees("writes volumesInUse", "(NotAttached)")
	s.attaches(handle)
	s.isReady(pod)
	s.say("user", "deletes p by force; its container runs")
	must(s, s.admin.CoreV1().Pods(s.name).Delete(s.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	s.sees("FailedUnmount on Node")
	unfollow()
	s.dies("is killed")
	s.starts("restarts, and follows the pods of the API")
	go s.agent.FollowPods(s.ctx)
	s.sees("FailedUnmount on Node")
	s.say("runtime", "says that the container has ended")
	runtime.runs.Store(false)
	s.detaches(handle)
}

func lifeInline(s *transcript) {
	s.starts("starts")
	pod := s.named(s.inlinePod("p", "scratch"))
	s.sets(pod)
	s.isReady(pod)
	s.dies("is killed")
	s.starts("restarts")
	s.sets(pod)
	s.isReady(pod)
	s.removes(pod)
	s.sees("publish for pod p: removed")
}

func lifeBlock(s *transcript) {
	handle := s.volume("data", blockVolume)
	s.starts("starts")
	pod := s.named(s.podWith("p", device, "data"))
	s.attached(pod, handle)
	s.isReady(pod)
	s.sees("SuccessfulMountVolume")
	s.clears(pod, handle)
}

func lifeExpansion(s *transcript) {
	s.expandable()
	handle := "h-" + s.name + "-data"
	s.starts("starts", often)
	pod := s.named(s.pod("p", "data"))
	s.attached(pod, handle)
	s.isReady(pod)
	s.refuses("NodeExpandVolume", codes.Internal, "the file system is busy")
	s.say("resizer", "has enlarged data to 2Gi")
	s.grow("2Gi", tracks)
	s.sees("FileSystemResizeSuccessful on Pod", "FileSystemResizeSuccessful on PersistentVolumeClaim")
	s.clears(pod, handle)
}

// lifeDriverAway is about a driver that is not there when the pod comes, nor when it goes.
func lifeDriverAway(s *transcript) {
	s.options = append(s.options, eventOf(nodevolume.NotAttached, nodevolume.DriverNotRegistered))
	s.driver.Stop()
	handle := s.volume("data")
	s.starts("starts; no driver is registered")
	pod := s.named(s.pod("p", "data"))
	s.sets(pod)
	s.sees("writes volumesInUse", "(NotAttached)")
	s.attaches(handle)
	s.sees("(DriverNotRegistered)")
	s.say("driver", "comes")
	s.driver.Start()
	s.isReady(pod)
	s.sees("CSINode")
	s.say("driver", "goes")
	s.driver.Stop()
	s.sees("CSINode")
	s.removes(pod)
	s.sees("FailedUnmount on Node")
	s.say("driver", "comes back")
	s.driver.Start()
	s.sees("CSINode")
	s.detaches(handle)
}

func lifeReadWriteOncePod(s *transcript) {
	pod, handle := s.settled(accessModes(corev1.ReadWriteOncePod))
	second := s.named(s.pod("second", "data"))
	s.sets(second)
	s.sees("(OtherPodMounted)")
	s.removes(pod)
	s.isReady(second)
	s.clears(second, handle)
}

// lifeReboot is about a machine that has lost its mounts, and keeps one pod.
func lifeReboot(s *transcript) {
	pod, handle := s.settled()
	s.dies("and the machine lose power")
	s.driver.LoseMounts()
	s.bootID = "boot-2"
	s.starts("restarts")
	s.sets(pod)
	s.isReady(pod)
	s.dies("and the machine lose power")
	s.driver.LoseMounts()
	s.bootID = "boot-3"
	s.starts("restarts; the pod went in the meantime")
	s.say("pods", "are all set: there are none")
	s.agent.PodsSynced()
	s.detaches(handle)
}
