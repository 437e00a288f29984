package e2e

import (
	"testing"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// fenceLimit bounds each wait for a fence.
const fenceLimit = labtest.FenceLimit

// site is a lab with recovery, and a writer.
type site struct{ *labtest.Site }

// needsFencing skips a test where no machine can be fenced, and which is too long for the short tests.
func needsFencing(t *testing.T) {
	t.Helper()
	labtest.NeedsFencing(t)
	if testing.Short() {
		t.Skip("NOT RUN: recovery from faults that take minutes belongs to the long tests")
	}
}

func openSite(t *testing.T, o cluster.Options) *site {
	t.Helper()
	return &site{labtest.OpenSite(t, o)}
}

// of is the same site for a subtest.
func (s *site) of(t *testing.T) *site {
	t.Helper()
	return &site{s.Of(t)}
}
