package diagnosis

import "testing"

// TestNamesInTexts: a name is a word of a text, not a part of a longer name. A dot joins the names of volumes, and ends that of a host.
func TestNamesInTexts(t *testing.T) {
	for text, want := range map[string][2]bool{
		"volume data: timeout":        {true, true},
		"data":                        {true, true},
		`"data" and "other"`:          {true, true},
		"data-1, data2, 1data, _data": {},
		"data.example.com":            {false, true},
		"my.data failed":              {false, true},
		"data-1 and data failed":      {true, true},
		"":                            {},
	} {
		if got := [2]bool{names(text, "data"), indexWord(text, "data") >= 0}; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
