package nodeagent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// childEnv makes this test binary an agent process that a test can kill -9. It
// holds kubeconfig, node name, root and the file with the mount table.
const childEnv = "BELAY_TEST_AGENT"

// runChild is the agent process. It never returns.
func runChild(arguments string) {
	part := strings.Split(arguments, "|")
	config, err := clientcmd.BuildConfigFromFlags("", part[0])
	if err == nil {
		var agent *Agent
		agent, err = New(Config{
			Logger:   funcr.New(func(_, line string) { fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly+".000"), line) }, funcr.Options{Verbosity: 1}),
			NodeName: part[1], Root: part[2], RESTConfig: config, BootID: "boot-1",
			MountPoints: func() ([]string, error) { return readLines(part[3]) },
		})
		if err == nil {
			go func() { _ = agent.FollowPods(context.Background()) }()
			err = agent.Run(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, "agent process:", err)
	os.Exit(3)
}

func readLines(path string) ([]string, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	return lines, scanner.Err()
}

// chaos is a world whose agent is a process, with a controller that acts on its own.
type chaos struct {
	*world
	rng        *rand.Rand
	kubeconfig string
	table      string
	handles    []string
	pods       map[string]*corev1.Pod // by name
	saving     sync.Mutex
	log        *os.File // of the agents

	mu sync.Mutex
	// Under mu:
	violations []string
	agent      *exec.Cmd
}

func (c *chaos) violated(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, fmt.Sprintf(format, args...))
}

// saveTable puts the driver's mounts where the agent process reads its mount table. One at a time: an older table must not replace a newer one.
func (c *chaos) saveTable() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	points, err := c.driver.MountPoints()
	if err != nil {
		return err
	}
	tmp := c.table + strconv.Itoa(rand.Int())
	if err := os.WriteFile(tmp, []byte(strings.Join(points, "\n")), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, c.table)
}

// startAgent starts the agent process.
func (c *chaos) startAgent() {
	c.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{c.kubeconfig, c.name, c.root, c.table}, "|"))
	cmd.Stderr = c.log
	must(c, cmd.Start())
	c.agent = cmd
}

func (c *chaos) killAgent() {
	c.Helper()
	must(c, c.agent.Process.Kill())
	_ = c.agent.Wait() // it says that it was killed
}

// control is the attach/detach controller and attacher, in the order that
// upstream's has too: report only what is attached; withdraw, check, delete.
func (c *chaos) control(ctx context.Context) {
	watching, err := c.admin.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + c.name})
	if err != nil {
		c.violated("watch the node: %v", err)
		return
	}
	defer watching.Stop()
	for ctx.Err() == nil {
		select {
		case <-watching.ResultChan():
		case <-time.After(20 * time.Millisecond):
		}
		if err := c.controlOnce(ctx); err != nil && ctx.Err() == nil {
			c.violated("controller: %v", err)
			return
		}
	}
}

func (c *chaos) controlOnce(ctx context.Context) error {
	pods, err := c.admin.CoreV1().Pods(c.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, pod := range pods.Items {
		for _, v := range pod.Spec.Volumes {
			wanted["h-"+c.name+"-"+v.PersistentVolumeClaim.ClaimName] = true
		}
	}
	for _, handle := range c.handles {
		node, err := c.admin.CoreV1().Nodes().Get(ctx, c.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		inUse := slices.Contains(node.Status.VolumesInUse, c.unique(handle))
		_, err = c.admin.StorageV1().VolumeAttachments().Get(ctx, kube.AttachmentName(handle, c.driverName(), c.name), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		attached := err == nil
		reported := slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == c.unique(handle) })
		switch {
		case wanted[handle] && !attached:
			err = c.tryAttach(handle)
		case attached && !reported:
			err = c.report(handle, true)
		case !wanted[handle] && attached && !inUse:
			err = c.detach(handle)
			if errors.Is(err, errStillInUse) {
				err = c.report(handle, true)
			}
		default:
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkS7 is a live read of the Node within each stage and unstage.
func (c *chaos) checkS7(method, handle string) {
	if method != "Stage" && method != "Unstage" {
		return
	}
	node, err := c.admin.CoreV1().Nodes().Get(context.Background(), c.name, metav1.GetOptions{})
	if err != nil {
		c.violated("read the node: %v", err)
		return
	}
	if !slices.Contains(node.Status.VolumesInUse, c.unique(handle)) {
		c.violated("S7: %s of %s, in use are %v", method, handle, node.Status.VolumesInUse)
	}
}

// TestKillsAtAnyMoment kills the agent process with -9 while pods come and go and
// the driver fails now and then. BELAY_CHAOS_SEED and BELAY_CHAOS_KILLS set seed and number.
func TestKillsAtAnyMoment(t *testing.T) {
	seed := envNumber(t, "BELAY_CHAOS_SEED", uint64(time.Now().UnixNano()))
	kills := envNumber(t, "BELAY_CHAOS_KILLS", 25)
	t.Logf("replay with BELAY_CHAOS_SEED=%d", seed)
	c := newChaos(t, seed)
	ctx, stop := context.WithCancel(c.ctx)
	var running sync.WaitGroup
	running.Go(func() { c.control(ctx) })
	defer running.Wait()
	defer stop()

	c.startAgent()
	for range kills {
		for range 1 + c.rng.IntN(3) {
			c.churn()
		}
		// The start of an agent takes some hundred milliseconds, the lifecycle of a volume some ten.
		time.Sleep(time.Duration(c.rng.IntN(300)) * time.Millisecond)
		c.killAgent()
		c.startAgent()
	}
	c.driver.SetAfter(func(string, string, int) error { return c.saveTable() })
	for name, pod := range c.pods {
		target := filepath.Join(c.root, podVolumesDir(string(pod.UID)), c.name+"-"+pod.Spec.Volumes[0].Name, "mount")
		wait.Until(c, "pod "+name+" is mounted", func() bool { return c.isMounted(target) })
	}
	for name := range c.pods {
		must(t, c.admin.CoreV1().Pods(c.name).Delete(c.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	}
	for _, handle := range c.handles {
		c.untilNotInUse(handle)
	}
	c.killAgent()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, violation := range c.violations {
		t.Error(violation)
	}
	if points, _ := c.driver.MountPoints(); len(points) > 0 {
		t.Errorf("still mounted: %v", points)
	}
	c.untilNothingIsLeft()
	histogram := map[string]int{}
	for _, call := range c.driver.Made() {
		histogram[strings.Fields(call)[0]]++
	}
	t.Logf("%d kills; calls %v", kills, histogram)
}

func (c *chaos) isMounted(path string) bool {
	points, _ := c.driver.MountPoints()
	return slices.Contains(points, path)
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	c := &chaos{world: newWorld(t), rng: rand.New(rand.NewPCG(seed, 1)), pods: map[string]*corev1.Pod{}}
	c.world.ctx = t.Context()
	t.Cleanup(func() {
		if c.agent != nil && c.agent.ProcessState == nil { // the test failed early
			c.killAgent()
		}
	})
	dir := t.TempDir()
	var err error
	c.log, err = os.Create(filepath.Join(dir, "log"))
	must(t, err)
	t.Cleanup(func() {
		defer c.log.Close()
		if raw, err := os.ReadFile(c.log.Name()); t.Failed() && err == nil {
			t.Logf("the agents logged:\n%s", raw)
		}
	})
	c.kubeconfig, c.table = apiserver.Kubeconfig(t, c.nodeID), filepath.Join(dir, "mounts")
	for _, name := range []string{"v0", "v1", "v2"} {
		c.handles = append(c.handles, c.volume(name))
	}
	driverRng := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex
	moody := func() error {
		mu.Lock()
		defer mu.Unlock()
		switch driverRng.IntN(20) {
		case 0:
			return status.Error(codes.Unavailable, "the reply is lost")
		case 1:
			return status.Error(codes.InvalidArgument, "refused")
		default:
			return nil
		}
	}
	c.driver.Lock()
	defer c.driver.Unlock()
	c.driver.Before = func(method, handle string, _ int) error {
		c.checkS7(method, handle)
		return moody()
	}
	c.driver.After = func(string, string, int) error {
		if err := c.saveTable(); err != nil {
			return err
		}
		if err := moody(); status.Code(err) == codes.Unavailable {
			return err
		}
		return nil
	}
	return c
}

// churn makes or deletes a pod.
func (c *chaos) churn() {
	c.Helper()
	name := fmt.Sprintf("p%d", c.rng.IntN(5))
	if c.pods[name] == nil {
		c.pods[name] = c.pod(name, fmt.Sprintf("v%d", c.rng.IntN(3)))
		return
	}
	must(c, c.admin.CoreV1().Pods(c.name).Delete(c.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	delete(c.pods, name)
}

func envNumber(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is no number", name, text)
	}
	return number
}
