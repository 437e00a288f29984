package csi

import (
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// TestAccessModeMapping has upstream's cases, and an unknown mode.
func TestAccessModeMapping(t *testing.T) {
	for name, test := range map[string]struct {
		mode       AccessMode
		tellsApart bool
		want       spec.VolumeCapability_AccessMode_Mode
	}{
		"with ReadWriteOnce and incapable driver":    {"ReadWriteOnce", false, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"with ReadOnlyMany and incapable driver":     {"ReadOnlyMany", false, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		"with ReadWriteMany and incapable driver":    {"ReadWriteMany", false, spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		"with ReadWriteOncePod and incapable driver": {"ReadWriteOncePod", false, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"with ReadWriteOnce and capable driver":      {"ReadWriteOnce", true, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		"with ReadOnlyMany and capable driver":       {"ReadOnlyMany", true, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		"with ReadWriteMany and capable driver":      {"ReadWriteMany", true, spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		"with ReadWriteOncePod and capable driver":   {"ReadWriteOncePod", true, spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		"with an unknown mode":                       {"ReadSometimes", true, spec.VolumeCapability_AccessMode_UNKNOWN},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.mode.mode(test.tellsApart); got != test.want {
				t.Errorf("mode %v, want %v", got, test.want)
			}
		})
	}
}
