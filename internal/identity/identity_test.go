package identity

import "testing"

const dell = "4c4c4544-0051-3910-8052-b4c04f4d3532"

// TestOf is the table of what identifies something, and of the forms of one UUID.
func TestOf(t *testing.T) {
	for s, want := range map[string]string{
		dell: dell, "4C4C4544-0051-3910-8052-B4C04F4D3532": dell, "4c4c4544005139108052b4c04f4d3532": dell,
		" {4C4C4544-0051-3910-8052-b4c04f4d3532}\n": dell, "urn:uuid:" + dell: dell,
		"": "", " \n": "",
		"00000000-0000-0000-0000-000000000000": "", "00000000000000000000000000000000": "",
		"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF": "", "ffffffff-ffff-ffff-ffff-ffffffffffff": "",
		"03000200-0400-0500-0006-000700080009": "", "00020003-0004-0005-0006-000700080009": "", "03000200040005000006000700080009": "",
		"12345678-1234-5678-90ab-cddeefaabbcc": "", "12345678-1234-1234-1234-123456789ABC": "",
		"Not Settable": "", "Not Present": "", "To be filled by O.E.M.": "",
		// One digit more or less is another UUID, and what is no UUID is taken as it is.
		"03000200-0400-0500-0006-000700080008": "03000200-0400-0500-0006-000700080008",
		"12345678-1235-5678-90ab-cddeefaabbcc": "12345678-1235-5678-90ab-cddeefaabbcc",
		"aws:///eu-west-1a/i-0A1":              "aws:///eu-west-1a/i-0A1", "machine-a": "machine-a", "0": "0",
	} {
		if got := Of(s); got != want {
			t.Errorf("Of(%q) is %q, want %q", s, got, want)
		}
	}
}

// TestSameAndAnother: what identifies nothing is neither the same nor another, and so are two ways to write an ID in a cloud.
func TestSameAndAnother(t *testing.T) {
	for _, c := range []struct {
		was, is       string
		same, another bool
	}{
		{dell, "4C4C4544005139108052B4C04F4D3532", true, false},
		{dell, "4c4c4544-0051-3910-8052-b4c04f4d3533", false, true},
		{"", "", false, false},
		{"", dell, false, false},
		{"03000200-0400-0500-0006-000700080009", "03000200-0400-0500-0006-000700080009", false, false},
		{dell, "03000200-0400-0500-0006-000700080009", false, false},
		{"azure:///rg/MC_a/vm", "azure:///rg/mc_a/vm", false, false},
		{"aws:///a/i-1", "aws:///a/i-1", true, false},
		{"aws:///a/i-1", "aws:///a/i-2", false, true},
	} {
		for range 2 { // both ways
			if same, another := Same(c.was, c.is), Another(c.was, c.is); same != c.same || another != c.another {
				t.Errorf("%q and %q: same %v, another %v", c.was, c.is, same, another)
			}
			c.was, c.is = c.is, c.was
		}
	}
}

func TestOfName(t *testing.T) {
	for id, want := range map[string]bool{
		"k3s://a": true, "gce://project/zone/a": true, "a": true, "aws:///eu-west-1a/i-1": false, "gce://project/a/other": false, "": false,
	} {
		if got := OfName(id, "a"); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
	if OfName("", "") {
		t.Error("no name")
	}
}

// TestNoAllocation: an identity is compared at each decision.
func TestNoAllocation(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Same(dell, dell); Another(dell, "aws:///eu-west-1a/i-1") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
