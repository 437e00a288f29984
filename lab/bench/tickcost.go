package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/hollowkubelet/statuses"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/socket"
	"belay.dev/belay/lab/upstream"
)

// planeKubelets is the column of what kubelets cost: no plane is at work there.
const planeKubelets = "kubelets"

const (
	hollowProgram   = "./hollowkubelet"
	hollowComponent = "hollow-kubelets"
	// tickReadings is in how many parts a window is read.
	tickReadings = 3
	// statusReport is nodeStatusReportFrequency's default, with which the advice of docs/operate.md keeps it.
	statusReport = 5 * time.Minute
	// hollowStart bounds the start of one kubelet: each starts after the last.
	hollowStart = 5 * time.Second
	// otherInstances of inotify are for all else of the machine: a kubelet needs one.
	otherInstances = 128
)

// costRow is one setting of all kubelets.
type costRow struct {
	tick time.Duration
	// follows leaves nodeStatusReportFrequency unset, so that it follows the tick.
	follows bool
}

func (r costRow) String() string {
	name := fmt.Sprintf("status every %s", spaced(r.tick))
	if r.follows {
		name += ", report frequency unset"
	}
	return name
}

// costRows are each tick with statuses reported every 5 minutes, then those with what follows from setting nothing else.
func costRows(ticks, unset []time.Duration) []costRow {
	rows := make([]costRow, 0, len(ticks)+len(unset))
	for _, tick := range ticks {
		rows = append(rows, costRow{tick: tick})
	}
	for _, tick := range unset {
		rows = append(rows, costRow{tick: tick, follows: true})
	}
	return rows
}

// config is the file of the kubelets: what a user sets, and nothing else. kubelet's own defaults do the rest, so that a report frequency
// that is not set is the tick's (k8s.io/kubernetes v1.36.3, pkg/kubelet/apis/config/v1beta1/defaults.go).
func (r costRow) config() ([]byte, error) {
	config := kubeletconfig.KubeletConfiguration{
		TypeMeta:                  metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		NodeStatusUpdateFrequency: metav1.Duration{Duration: r.tick},
	}
	if !r.follows {
		config.NodeStatusReportFrequency = metav1.Duration{Duration: statusReport}
	}
	raw, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode kubelet's configuration: %w", err)
	}
	return raw, nil
}

// tickCost measures all rows over one API server.
func tickCost(ctx context.Context, o *tickOptions, say func(string, ...any)) (figures []*Figure, err error) {
	cache, err := cluster.CacheDir()
	if err != nil {
		return nil, err
	}
	program, err := upstream.EnsureOwn(ctx, upstream.Request{Cache: cache, Progress: say}, hollowProgram)
	if err != nil {
		return nil, err
	}
	r, err := openRig(ctx, rigOptions{name: o.name, later: true, say: say})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if err := nodes.RaiseSysctl(r.lab.Dir(), "fs/inotify/max_user_instances", o.nodes+otherInstances); err != nil {
		return nil, err
	}
	for _, row := range costRows(o.ticks, o.unset) {
		rates, err := o.costOf(ctx, r, program, row)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row, err)
		}
		figures = append(figures, costFigures(row, o.nodes, rates)...)
	}
	return figures, nil
}

// costOf starts all kubelets with the row's setting, lets them settle, reads the window, and stops them.
func (o *tickOptions) costOf(ctx context.Context, r *rig, program string, row costRow) (rates []tickRates, err error) {
	dir := filepath.Join(r.lab.Dir(), "hollow")
	config := filepath.Join(r.lab.Dir(), "hollow-kubelet.yaml")
	raw, err := row.config()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(config, raw, 0o600)); err != nil {
		return nil, fmt.Errorf("prepare the kubelets' files: %w", err)
	}
	began := time.Now()
	if err := r.lab.StartProgram(hollowComponent, program, "--kubeconfig", r.lab.Kubeconfig(), "--config", config,
		"--dir", dir, "--nodes", fmt.Sprint(o.nodes)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.lab.Stop(context.WithoutCancel(ctx), hollowComponent)) }()
	if err := o.awaitHollow(ctx, r, dir); err != nil {
		return nil, err
	}
	r.say("cost, %s: %d kubelets started in %.0f s; settling for %v", row, o.nodes, time.Since(began).Seconds(), o.settle)
	if err := pause(ctx, o.settle); err != nil {
		return nil, err
	}
	last, err := r.readTicks(ctx, dir)
	if err != nil {
		return nil, err
	}
	for range tickReadings {
		if err := pause(ctx, o.window/tickReadings); err != nil {
			return nil, err
		}
		next, err := r.readTicks(ctx, dir)
		if err != nil {
			return nil, err
		}
		rate := ratesBetween(last, next)
		r.say("cost, %s: %.1f statuses/s (%.0f %% of wanted), %.1f patched/s, API server %.1f %%, etcd %.1f %% of a core, a kubelet %.2f ms/s", row, rate.ticks,
			kept(rate.ticks, o.nodes, row.tick), rate.requests[requestStatus], 100*rate.cpu["kube-apiserver"], 100*rate.cpu["etcd"],
			1000*rate.cpu[hollowComponent]/float64(o.nodes))
		rates, last = append(rates, rate), next
	}
	return rates, nil
}

// awaitHollow waits until all kubelets have written a status.
func (o *tickOptions) awaitHollow(ctx context.Context, r *rig, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute+time.Duration(o.nodes)*hollowStart, fmt.Errorf("%d kubelets did not start in time", o.nodes))
	defer cancel()
	var said int64
	for {
		if _, err := r.pidOf(hollowComponent); err != nil {
			return err
		}
		state, err := askHollow(ctx, dir)
		if err == nil && state.Started == int64(o.nodes) {
			return nil
		}
		if state.Started >= said+100 {
			said = state.Started
			r.say("cost: %d of %d kubelets started", said, o.nodes)
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func askHollow(ctx context.Context, dir string) (state statuses.State, err error) {
	client := socket.NewClient(filepath.Join(dir, statuses.Socket))
	defer client.CloseIdleConnections()
	err = socket.Ask(ctx, client, "GET", "/state", nil, &state)
	return state, err
}

// readTicks reads all counters. The CPU time is read before the metrics, whose making takes some.
func (r *rig) readTicks(ctx context.Context, dir string) (tickReading, error) {
	reading := tickReading{at: time.Now(), cpu: map[string]time.Duration{}}
	for _, component := range []string{"kube-apiserver", "etcd", hollowComponent} {
		pid, err := r.pidOf(component)
		if err != nil {
			return reading, err
		}
		if reading.cpu[component], err = cpuTime(pid); err != nil {
			return reading, err
		}
	}
	state, err := askHollow(ctx, dir)
	if err != nil {
		return reading, fmt.Errorf("ask the kubelets: %w", err)
	}
	reading.ticks = state.Ticks
	raw, err := r.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return reading, fmt.Errorf("read the API server's metrics: %w", err)
	}
	reading.served, err = parseServed(raw)
	return reading, err
}

// costFigures are the figures of a row.
func costFigures(row costRow, nodes int, rates []tickRates) []*Figure {
	figure := func(name, unit string, of func(tickRates) float64) *Figure {
		var samples []float64
		for _, rate := range rates {
			samples = append(samples, of(rate))
		}
		return numbers(name+", "+row.String(), unit, map[string][]float64{planeKubelets: samples})
	}
	var figures []*Figure
	for _, request := range tickRequests() {
		figures = append(figures, figure(request, "requests/s", func(r tickRates) float64 { return r.requests[request] }))
	}
	done := figure("statuses computed, of those wanted", "%", func(r tickRates) float64 { return kept(r.ticks, nodes, row.tick) })
	target := Target{Text: fmt.Sprintf(">= %d %%", keptAtLeast), Limit: keptAtLeast, Met: done.Value[planeKubelets] >= keptAtLeast}
	if !target.Met {
		target.Is, done.Note = "saturated", "the machine was saturated: the CPU times of this row are those of fewer statuses than wanted"
	}
	done.Targets = []Target{target}
	return append(figures,
		figure("bodies of node patches", "KiB/s", func(r tickRates) float64 { return r.statusBytes / 1024 }),
		figure("CPU of kube-apiserver", "% of a core", func(r tickRates) float64 { return 100 * r.cpu["kube-apiserver"] }),
		figure("CPU of etcd", "% of a core", func(r tickRates) float64 { return 100 * r.cpu["etcd"] }),
		figure("CPU of a kubelet", "ms/s", func(r tickRates) float64 { return 1000 * r.cpu[hollowComponent] / float64(nodes) }),
		done)
}
