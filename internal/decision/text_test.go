package decision

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLongTextsAreCutAtCharacters(t *testing.T) {
	for _, text := range []string{"", strings.Repeat("a", MaxText), strings.Repeat("ä", MaxText/2)} {
		if got := Text(text); got != text {
			t.Errorf("%d bytes became %d", len(text), len(got))
		}
	}
	for _, text := range []string{strings.Repeat("a", 1<<20), strings.Repeat("ä", 1<<19), strings.Repeat("a\xff", 1<<19), "a" + strings.Repeat("\U0001F4BE", 1<<18)} {
		got := Text(text)
		if len(got) > MaxText || !utf8.ValidString(got) || !strings.HasSuffix(got, ellipsis) {
			t.Errorf("%q... became %d bytes, valid: %v", text[:8], len(got), utf8.ValidString(got))
		}
		if Text(got) != got {
			t.Error("a text that was cut is cut again")
		}
	}
}
