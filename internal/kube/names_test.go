package kube

import "testing"

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
		"plain handle":             {"csi.example.com", "vol-1"},
		"handle with caret":        {"csi.example.com", "pool^vol^1"},
		"handle with slash":        {"csi.example.com", "a/b"},
		"no driver, Fibre Channel": {FibreChannelPlugin, "[wwn]:1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			driver, handle, ok := ParseUniqueVolumeName(UniqueVolumeName(tt.driver, tt.handle))
			if !ok || driver != tt.driver || handle != tt.handle {
				t.Errorf("got (%q, %q, %v), want (%q, %q, true)", driver, handle, ok, tt.driver, tt.handle)
			}
		})
	}
	for _, name := range []string{"kubernetes.io/flex/1", "kubernetes.io/csi/no-caret", ""} {
		if _, _, ok := ParseUniqueVolumeName(name); ok {
			t.Errorf("ParseUniqueVolumeName(%q) accepted a name of a plugin that is not driven", name)
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
