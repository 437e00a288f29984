package explain

import (
	"strings"
	"testing"
)

// TestPermission: an answer says that the error names the permission only if it does.
func TestPermission(t *testing.T) {
	for detail, want := range map[string]string{
		"UnauthorizedOperation: You are not authorized to perform this operation.":                                "the permission to delete volumes (ec2:DeleteVolume)",
		"User: arn:aws:sts::1:assumed-role/ebs/i is not authorized to perform: ec2:DeleteVolume on resource: vol": "the permission that the error names",
		"does not have authorization to perform action 'Microsoft.Compute/disks/delete' over scope":               "the permission that the error names",
		"googleapi: Error 403: Required 'compute.disks.delete' permission for 'projects/p'":                       "the permission that the error names",
		"You are not authorized. " + encoded + ": x1":                                                             "the permission that the error has encoded",
	} {
		if got := permission(Situation{Detail: detail, Answer: Answer{Right: "ec2:DeleteVolume"}}, "delete volumes"); got != want {
			t.Errorf("%s: %q, want %q", detail, got, want)
		}
	}
	if got := permit(Situation{Detail: "denied"}, "delete volumes"); !strings.HasSuffix(got, "the permission to delete volumes.") {
		t.Error(got)
	}
}

// TestTriedFileSystem: where the driver tried another type than the PersistentVolume's, no step is a repair.
func TestTriedFileSystem(t *testing.T) {
	for fsType, repairs := range map[string]bool{"ext4": false, "xfs": true, "": true} {
		s := Situation{Volume: "pv", Wanted: "n1", Answer: Answer{Tried: "xfs", Device: "/dev/sdb", FSType: fsType}}
		g, text := GuideTo(FileSystemMismatch), ""
		for _, step := range g.Steps(s) {
			text += step.Text + " "
		}
		summary := g.Summary(s)
		if strings.Contains(text, ": repair it") != repairs || !strings.Contains(summary, "tried to mount /dev/sdb as xfs") || !strings.Contains(summary, fsType) {
			t.Errorf("%q: %s %s", fsType, summary, text)
		}
	}
}
