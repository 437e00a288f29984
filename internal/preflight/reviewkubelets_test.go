package preflight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestRequestsOfManyKubelets: a number of requests is written as a person reads it.
func TestRequestsOfManyKubelets(t *testing.T) {
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("n%04d", i))
	}
	config := reviewed(true, nil)
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("4s", "4s", 40)), nil }
	health := Health(t.Context(), config, nodesOf(names...), false)
	if c := kubeletsOf(&health)["nodeStatusReportFrequency"]; !strings.Contains(c.Message, "about 1250 requests a second") {
		t.Errorf("%s", c.Message)
	}
}

// TestAlmostFollows: a report frequency of two seconds sends nearly as much without need as one of a second.
func TestAlmostFollows(t *testing.T) {
	config := reviewed(true, nil)
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("1s", "2s", 40)), nil }
	health := Health(t.Context(), config, nodesOf("a", "b"), false)
	if c := kubeletsOf(&health)["nodeStatusReportFrequency"]; c.Result != Warning {
		t.Errorf("nodeStatusUpdateFrequency 1s, nodeStatusReportFrequency 2s: %s: %s", c.Result, c.Message)
	}
}

// TestHostileTick: one node does not make up the requests of all.
func TestHostileTick(t *testing.T) {
	config := reviewed(true, nil)
	config.Kubelets = func(_ context.Context, node string) ([]byte, error) {
		if node == "hostile" {
			return []byte(configOf("1ns", "1ns", 40)), nil
		}
		return []byte(configOf("10s", "5m", 40)), nil
	}
	health := Health(t.Context(), config, nodesOf("hostile", "a"), false)
	if c := kubeletsOf(&health)["nodeStatusReportFrequency"]; strings.Contains(c.Message, "1e+09") {
		t.Errorf("%s", c.Message)
	}
}

// TestProfileOfAnotherRole: the detector's profile counts; the actor's and the fencer's say nothing of when a node is suspected.
func TestProfileOfAnotherRole(t *testing.T) {
	objects := []runtime.Object{
		runs("belay-system", "a-actor", "belay-controller:v1", "--controllers=attachdetach,recovery", "--recovery-roles=actor"),
		runs("belay-system", "detector", "belay-controller:v1", "--controllers=recovery", "--recovery-roles=detector", "--recovery-profile=fast"),
	}
	config := reviewed(true, nil, objects...)
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("10s", "5m", 40)), nil }
	health := Health(t.Context(), config, nodesOf("a"), false)
	if c := kubeletsOf(&health)["nodeLeaseDurationSeconds"]; c.Result != Warning || !strings.Contains(c.Message, "profile fast") {
		t.Errorf("%s: %s; the detector runs with fast", c.Result, c.Message)
	}
}

// TestHintLeads: the hint of a warning names a section that its page has.
func TestHintLeads(t *testing.T) {
	config := reviewed(true, nil, runs("belay-system", "recovery", "belay-controller:v1", "--controllers=recovery", "--recovery-profile=fast"))
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("10s", "5m", 40)), nil }
	health := Health(t.Context(), config, nodesOf("a"), false)
	c := kubeletsOf(&health)["nodeLeaseDurationSeconds"]
	page, section, _ := strings.Cut(c.Hint, "#")
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil || !strings.Contains(strings.ToLower(string(text)), "\n## "+section+"\n") {
		t.Errorf("%s: there is no such section (%v)", c.Hint, err)
	}
}
