package mounttable

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entries parses mountinfo lines.
func entries(t *testing.T, lines string) []entry {
	t.Helper()
	parsed, err := parse([]byte(lines))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

const (
	staging = "/var/lib/kubelet/plugins/globalmount"
	target  = "/var/lib/kubelet/pods/p/mount"
	// ours is a node whose root is shared, with a disk staged and published, an NFS export, and a volume that is a
	// directory of the root file system.
	ours = `27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
60 27 8:16 / /var/lib/kubelet/plugins/globalmount rw shared:60 - ext4 /dev/sdb rw
61 27 8:16 / /var/lib/kubelet/pods/p/mount rw shared:60 - ext4 /dev/sdb rw
62 27 0:50 / /nfs/a rw shared:62 - nfs4 server:/a rw
63 27 254:0 /srv/v1 /local rw shared:1 - ext4 /dev/vda rw
`
)

func TestHolders(t *testing.T) {
	tests := map[string]struct {
		own    string
		other  string // the table of another namespace
		volume Volume
		want   []string // paths
	}{
		"a container's own mount, made from the target": {ours, `90 1 0:99 / / rw - overlay overlay rw
91 90 8:16 / /data rw - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, []string{"/data"}},
		"the same, which receives mounts (HostToContainer)": {ours, `90 1 0:99 / / rw - overlay overlay rw
91 90 8:16 / /data rw master:60 - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, []string{"/data"}},
		"the same, which sends them too (Bidirectional)": {ours, `90 1 0:99 / / rw - overlay overlay rw
91 90 8:16 / /data rw shared:60 - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, []string{"/data"}},
		"a subPath of it": {ours, `90 1 0:99 / / rw - overlay overlay rw
91 90 8:16 /sub/dir /data rw - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, []string{"/data"}},
		"a private copy of the whole namespace": {ours, `127 1 254:0 / / rw - ext4 /dev/vda rw
160 127 8:16 / /var/lib/kubelet/plugins/globalmount rw - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, []string{staging}},
		"a namespace that receives our unmounts": {ours, `127 1 254:0 / / rw master:1 - ext4 /dev/vda rw
160 127 8:16 / /var/lib/kubelet/plugins/globalmount rw master:60 - ext4 /dev/sdb rw
161 127 8:16 / /var/lib/kubelet/pods/p/mount rw master:60 - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, nil},
		"the same, with another mount below it": {ours, `127 1 254:0 / / rw master:1 - ext4 /dev/vda rw
160 127 8:16 / /var/lib/kubelet/plugins/globalmount rw master:60 - ext4 /dev/sdb rw
162 160 0:77 / /var/lib/kubelet/plugins/globalmount/below rw - tmpfs below rw`, Volume{Paths: []string{staging, target}}, []string{staging}},
		"the same, with a copy of a mount of ours below it": {ours + "64 60 0:77 / /var/lib/kubelet/plugins/globalmount/below rw shared:64 - tmpfs below rw\n", `127 1 254:0 / / rw master:1 - ext4 /dev/vda rw
160 127 8:16 / /var/lib/kubelet/plugins/globalmount rw master:60 - ext4 /dev/sdb rw
162 160 0:77 / /var/lib/kubelet/plugins/globalmount/below rw master:64 - tmpfs below rw`, Volume{Paths: []string{staging, target}}, nil},
		"a driver's container, which has our root at another place": {ours, `90 1 0:99 / / rw - overlay overlay rw
127 90 254:0 /var/lib/kubelet /kubelet rw shared:1 - ext4 /dev/vda rw
160 127 8:16 / /kubelet/plugins/globalmount rw shared:60 - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, nil},
		"a slave of a slave": {ours, `127 1 254:0 / / rw shared:5 master:1 - ext4 /dev/vda rw
160 127 8:16 / /var/lib/kubelet/plugins/globalmount rw - ext4 /dev/sdb rw
128 127 254:0 /var/lib/kubelet /k rw master:5 - ext4 /dev/vda rw
161 128 8:16 / /k/plugins/globalmount rw - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, nil},
		"a slave has it bound to another place": {ours, `127 1 254:0 / / rw master:1 - ext4 /dev/vda rw
160 127 8:16 / /backup rw master:60 - ext4 /dev/sdb rw`, Volume{Paths: []string{staging, target}}, []string{"/backup"}},
		"our root is private: nothing of ours goes elsewhere": {
			"27 1 254:0 / / rw - ext4 /dev/vda rw\n60 27 8:16 / /var/lib/kubelet/plugins/globalmount rw - ext4 /dev/sdb rw\n",
			"127 1 254:0 / / rw - ext4 /dev/vda rw\n160 127 8:16 / /var/lib/kubelet/plugins/globalmount rw - ext4 /dev/sdb rw",
			Volume{Paths: []string{staging}}, []string{staging},
		},
		"another disk": {ours, `90 1 0:99 / / rw - overlay overlay rw
91 90 8:32 / /data rw - ext4 /dev/sdc rw`, Volume{Paths: []string{staging, target}}, nil},
		"another place in our namespace":                {ours, "", Volume{Paths: []string{staging}}, []string{target}},
		"the same, of which others are responsible":     {ours, "", Volume{Paths: []string{staging}, OtherNamespacesOnly: true}, nil},
		"a network file system":                         {ours, "91 90 0:50 / /data rw - nfs4 server:/a rw", Volume{Paths: []string{"/nfs/a"}}, []string{"/data"}},
		"another export that shares the superblock":     {ours, "91 90 0:50 / /data rw - nfs4 server:/b rw", Volume{Paths: []string{"/nfs/a"}}, nil},
		"a directory of the root file system":           {ours, "91 90 254:0 /srv/v1 /data rw - ext4 /dev/vda rw", Volume{Paths: []string{"/local"}}, []string{"/data"}},
		"a directory beside it, and all of it":          {ours, "91 90 254:0 /srv/v10 /data rw - ext4 /dev/vda rw\n90 1 254:0 / / rw - ext4 /dev/vda rw", Volume{Paths: []string{"/local"}}, nil},
		"nothing is mounted there, so it is unknown":    {ours, "91 90 8:16 / /data rw - ext4 /dev/sdb rw", Volume{Paths: []string{"/none"}}, nil},
		"a point with a space, of a directory that was": {"27 1 8:16 / /a\\040b rw - ext4 /dev/sdb rw", "91 90 8:16 /x//deleted /d rw - ext4 /dev/sdb rw", Volume{Paths: []string{"/a b"}}, []string{"/d"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			table := &Table{own: entries(t, tt.own), others: []namespace{{name: "mnt:[1]", process: Process{PID: 42, Command: "c"}, entries: entries(t, tt.other)}}}
			holders, err := table.Holders(tt.volume)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range holders {
				got = append(got, h.Path)
				if h.PID != 42 && !slices.Contains([]string{staging, target}, h.Path) {
					t.Errorf("of no process: %v", h)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("holders (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnreadableNamespaceIsAnError(t *testing.T) {
	gone := errors.New("no right")
	table := &Table{own: entries(t, ours), unread: []error{gone}}
	if _, err := table.Holders(Volume{Paths: []string{target, staging}}); !errors.Is(err, gone) {
		t.Errorf("err = %v", err)
	}
}

func TestInvalidMountinfoLine(t *testing.T) {
	for _, line := range []string{"", "a b c", "27 1 8:16 / /a rw shared:1 ext4", "x 1 8:16 / / rw - ext4 /dev/sdb rw", "1 x 8:16 / / rw - ext4 /dev/sdb rw"} {
		if _, err := parseLine(line); err == nil {
			t.Errorf("%q is taken for a mount", line)
		}
	}
}
