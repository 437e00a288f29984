package kube

import (
	"strings"
	"testing"
)

func TestAttachmentNameIsUpstreams(t *testing.T) {
	// Both values were computed by upstream's getAttachmentName.
	tests := map[string]struct{ handle, driver, node, want string }{
		"example driver": {"vol-1", "csi.example.com", "node-1", "csi-b74c7fc125891ffa0d0f2e0d645733e3fae7fba3066e76500a771ea08be9da28"},
		"hostpath":       {"vol-1", "hostpath.csi.k8s.io", "node-a", "csi-5a70c5de395ccad5e79daeb27c7c4f2634b675e6e1bb2a397999a016143bc9fb"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := AttachmentName(tt.handle, tt.driver, tt.node); got != tt.want {
				t.Errorf("AttachmentName() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestUniqueVolumeNameRoundTrip(t *testing.T) {
	tests := map[string]struct{ driver, handle string }{
		"plain handle":       {"csi.example.com", "vol-1"},
		"handle with caret":  {"csi.example.com", "pool^vol^1"},
		"handle with slash":  {"csi.example.com", "a/b"},
		"only carets":        {"csi.example.com", "^^"},
		"newline and blank":  {"csi.example.com", "a\nb c\t"},
		"unicode":            {"csi.example.com", "Platte-ä-磁盘-💾"},
		"4 KiB":              {"csi.example.com", strings.Repeat("x^", 2048)},
		"another's name":     {"csi.example.com", "kubernetes.io/fc/[a]:1"},
		"Fibre Channel":      {FibreChannelPlugin, "[500a0982991b8dc5]:2"},
		"Fibre Channel wwid": {FibreChannelPlugin, "[3600508b400105e210000900000490000]"},
		"iSCSI":              {ISCSIPlugin, "10.0.2.15:3260:iqn.2001-04.com.example:storage.disk2:0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			driver, handle, ok := ParseUniqueVolumeName(UniqueVolumeName(tt.driver, tt.handle))
			if !ok || driver != tt.driver || handle != tt.handle {
				t.Errorf("got (%q, %q, %v), want (%q, %q, true)", driver, handle, ok, tt.driver, tt.handle)
			}
		})
	}
	for _, name := range []string{
		"kubernetes.io/csi/no-caret", "", "kubernetes.io/csi/^handle", "kubernetes.io/csi/driver^", "kubernetes.io/fc/", "kubernetes.io/fc",
		"kubernetes.io/aws-ebs/vol-1", "flexvolume-vendor/disk/1",
	} {
		if _, _, ok := ParseUniqueVolumeName(name); ok {
			t.Errorf("ParseUniqueVolumeName(%q) accepted a name of no volume of ours", name)
		}
	}
}

func TestIsAttachmentName(t *testing.T) {
	hash := strings.Repeat("0123456789abcdef", 4)
	for name, want := range map[string]bool{
		AttachmentName("vol", "driver", "node"): true,
		"csi-" + hash:                           true,
		"csi-" + hash[1:]:                       false,
		"csi-" + hash + "0":                     false,
		"csi-" + strings.ToUpper(hash):          false,
		"x-csi-" + hash:                         false,
		"mine":                                  false,
	} {
		if got := IsAttachmentName(name); got != want {
			t.Errorf("IsAttachmentName(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestAttacherFinalizer(t *testing.T) {
	tests := map[string]string{
		"ebs.csi.aws.com":    "external-attacher/ebs-csi-aws-com",
		`trailing\`:          "external-attacher/trailing-X",
		"s!a@n#i$t(i%z^e&d*": "external-attacher/s-a-n-i-t-i-z-e-d-X",
	}
	for driver, want := range tests {
		if got := AttacherFinalizer(driver); got != want {
			t.Errorf("AttacherFinalizer(%q) = %q, want %q", driver, got, want)
		}
	}
}
