package nodeagent

import (
	"os"
	"strings"
	"testing"

	"belay.dev/belay/internal/nodevolume"
)

// TestTheHopsAreDocumented: whoever reads in an event where a pod waits finds in
// docs/adopt-node.md who is asked to do something.
func TestTheHopsAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/adopt-node.md")
	must(t, err)
	for _, reason := range []nodevolume.Reason{
		"ClaimNotReady", nodevolume.AttachabilityUnknown, nodevolume.NodeUnknown, nodevolume.NotReportedInUse, nodevolume.NotAttached,
		nodevolume.DriverNotRegistered, nodevolume.OtherPodMounted, nodevolume.UnaccountedMount, nodevolume.ContainersMayRun, nodevolume.StillMountedElsewhere, nodevolume.OtherSELinuxLabelWanted, nodevolume.OtherSELinuxLabelMounted, nodevolume.BackingOff, nodevolume.AttachmentNotReady, nodevolume.AttachmentReplaced,
	} {
		if !strings.Contains(string(document), "`"+string(reason)+"`") {
			t.Errorf("docs/adopt-node.md does not say what %s means", reason)
		}
	}
}
