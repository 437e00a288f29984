package explain

import (
	"strings"
	"testing"
)

// TestPermission: an answer says that the error names the permission only if it does.
func TestPermission(t *testing.T) {
	for detail, want := range map[string]string{
		"UnauthorizedOperation: You are not authorized to perform this operation.":                                "the permission to delete volumes (ec2:DeleteVolume)",
		"User: arn:aws:sts::1:assumed-role/ebs/i is not authorized to perform: ec2:DeleteVolume on resource: vol": "the permission ec2:DeleteVolume",
		"does not have authorization to perform action 'Microsoft.Compute/disks/delete' over scope":               "the permission Microsoft.Compute/disks/delete",
		"googleapi: Error 403: Required 'compute.disks.delete' permission for 'projects/p'":                       "the permission compute.disks.delete",
		"You are not authorized. " + encoded + ": x1":                                                             "the permission to delete volumes (ec2:DeleteVolume)",
	} {
		if got := permission(Situation{Detail: detail, Answer: Answer{Right: "ec2:DeleteVolume"}}, "delete volumes"); got != want {
			t.Errorf("%s: %q, want %q", detail, got, want)
		}
	}
	if got := permit(Situation{Detail: "denied"}, "delete volumes"); !strings.HasSuffix(got, "the permission to delete volumes.") {
		t.Error(got)
	}
}

// TestTriedFileSystem: the kernel's log and blkid come first. Where the device has the type that was tried, it is damaged, and a copy is repaired; where
// it has another, the PersistentVolume is made again, as its source cannot be changed.
func TestTriedFileSystem(t *testing.T) {
	for fsType, wrong := range map[string]bool{"ext4": true, "xfs": false, "": false} {
		s := Situation{Volume: "pv", Wanted: "n1", Answer: Answer{Tried: "xfs", Device: "/dev/sdb", FSType: fsType}}
		g := GuideTo(FileSystemMismatch)
		steps := g.Steps(s)
		if len(steps) != 3 {
			t.Fatal(steps)
		}
		for i, words := range [][]string{{"dmesg", "blkid", "/dev/sdb", "do not format"}, {"blkid shows xfs", "snapshot or a copy", "repair only the copy"}, {"make the PersistentVolume again", "cannot be changed"}} {
			for _, word := range words {
				if !strings.Contains(steps[i].Text, word) {
					t.Errorf("%q: %q is not in step %d: %s", fsType, word, i+1, steps[i].Text)
				}
			}
		}
		if summary := g.Summary(s); strings.Contains(steps[0].Text, "one of them is wrong") != wrong || !strings.Contains(summary, "tried to mount /dev/sdb as xfs") || !strings.Contains(summary, fsType) {
			t.Errorf("%q: %s %s", fsType, summary, steps[0].Text)
		}
	}
}
