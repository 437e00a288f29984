package golden

import "testing"

func TestNormalize(t *testing.T) {
	for text, want := range map[string]string{
		"BLOCKED for 2m3s: pod a/b waits for volume pvc-0bb1b4ae-3f0c-4a67-9e3c-59c4bf5a4d8e": "BLOCKED for DURATION: pod a/b waits for volume PV-1",
		"(12s ago), since 2026-11-23T12:00:01Z, 300 s after":                                  "(DURATION ago), since TIME, 300 s after",
		"labdisk-3-0123456789 labdisk-4-0123456789 labdisk-3-0123456789":                      "HANDLE-1 HANDLE-2 HANDLE-1",
		"pod web-5c9f8b7d6c-x2x4z of web":                                                     "pod web-HASH-1 of web",
		"kubectl logs -n belay-system vm-1_2 --tail=1":                                        "kubectl logs -n belay-system POD --tail=1",
	} {
		if got := Normalize(text); got != want {
			t.Errorf("Normalize(%q) = %q, want %q", text, got, want)
		}
	}
}
