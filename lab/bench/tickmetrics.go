package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Requests of kubelets, as figures name them.
const (
	requestStatus = "PATCH node status"
	requestLease  = "PUT lease"
	requestNode   = "GET node"
	// requestOther has the requests of the kinds above that failed, too.
	requestOther = "all other requests"
)

// tickRequests are the names in the order of the report.
func tickRequests() []string { return []string{requestStatus, requestLease, requestNode, requestOther} }

// served is what an API server has served since its start.
type served struct {
	// requests by the names above.
	requests map[string]float64
	// statusBytes are the bodies of patches of nodes.
	statusBytes float64
}

var sampleLine = regexp.MustCompile(`^(\w+)\{([^}]*)\} (\S+)$`)

// parseServed reads the metrics of an API server in Prometheus' text format. The labels that it looks for have no escaped values.
func parseServed(metrics []byte) (served, error) {
	found := served{requests: map[string]float64{}}
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	counted := false
	for lines.Scan() {
		sample := sampleLine.FindStringSubmatch(lines.Text())
		if sample == nil || sample[1] != "apiserver_request_total" && sample[1] != "apiserver_request_body_size_bytes_sum" {
			continue
		}
		value, err := strconv.ParseFloat(sample[3], 64)
		if err != nil {
			return served{}, fmt.Errorf("read the metric %s: %w", lines.Text(), err)
		}
		labels := parseLabels(sample[2])
		if sample[1] == "apiserver_request_total" {
			counted = true
			found.requests[requestOf(labels)] += value
		} else if labels["resource"] == "nodes" && labels["verb"] == "patch" {
			found.statusBytes += value
		}
	}
	if err := lines.Err(); err != nil {
		return served{}, fmt.Errorf("read the API server's metrics: %w", err)
	}
	if !counted {
		return served{}, fmt.Errorf("the API server's metrics (%d bytes) do not count requests", len(metrics))
	}
	return found, nil
}

// parseLabels are the labels between the braces of a sample.
func parseLabels(text string) map[string]string {
	labels := map[string]string{}
	for pair := range strings.SplitSeq(text, `",`) {
		name, value, _ := strings.Cut(pair, `="`)
		labels[name] = strings.TrimSuffix(value, `"`)
	}
	return labels
}

func requestOf(labels map[string]string) string {
	if !strings.HasPrefix(labels["code"], "2") {
		return requestOther
	}
	switch labels["verb"] + " " + labels["resource"] + "/" + labels["subresource"] {
	case "PATCH nodes/status":
		return requestStatus
	case "PUT leases/":
		return requestLease
	case "GET nodes/":
		return requestNode
	default:
		return requestOther
	}
}

// tickReading is what was counted until a moment.
type tickReading struct {
	at     time.Time
	served served
	// ticks counts the statuses that all kubelets have computed. One that could not be written and was computed again counts once.
	ticks int64
	// cpu is the time of processors that each component has used.
	cpu map[string]time.Duration
}

// tickRates are what lies between two readings, in a second.
type tickRates struct {
	requests           map[string]float64
	statusBytes, ticks float64
	// cpu is in cores, by component.
	cpu map[string]float64
}

func ratesBetween(from, to tickReading) tickRates {
	seconds := to.at.Sub(from.at).Seconds()
	rates := tickRates{
		requests: map[string]float64{}, cpu: map[string]float64{},
		statusBytes: (to.served.statusBytes - from.served.statusBytes) / seconds,
		ticks:       float64(to.ticks-from.ticks) / seconds,
	}
	for _, name := range tickRequests() {
		rates.requests[name] = (to.served.requests[name] - from.served.requests[name]) / seconds
	}
	for component := range to.cpu {
		rates.cpu[component] = (to.cpu[component] - from.cpu[component]).Seconds() / seconds
	}
	return rates
}

// meanTick is how often a kubelet computes its status: it adds up to 4 % at random to each interval (pkg/kubelet/kubelet.go, JitterUntil).
func meanTick(tick time.Duration) time.Duration { return tick + tick/50 }

// kept is the share of the wanted statuses that kubelets computed, in percent. They fall behind where the machine is saturated.
func kept(perSecond float64, nodes int, tick time.Duration) float64 {
	return 100 * perSecond * meanTick(tick).Seconds() / float64(nodes)
}

// keptAtLeast is the share below which the machine was saturated, and the CPU times are no longer those of kubelets that keep their tick.
const keptAtLeast = 95
