package cluster

import (
	"slices"
	"testing"
)

// What the lab measures runs with the settings that are shipped.
func TestShippedEnvironment(t *testing.T) {
	for program, want := range map[string][]string{
		"belay-controller": {"GOGC=75", "GOMEMLIMIT=900MiB"}, "csi-attacher": nil, "belay-lab": nil,
	} {
		if got := shippedEnv(program); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", program, got, want)
		}
	}
}
