package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestReleaseSignsInAJobOfItsOwn: what compiles the modules of others, or runs as root, has no secret and no right to write or to sign. What has them builds nothing,
// and takes what was built by its digest.
func TestReleaseSignsInAJobOfItsOwn(t *testing.T) {
	raw, err := os.ReadFile("../../.github/workflows/release.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(raw), "\njobs:\n")
	starts := regexp.MustCompile(`(?m)^  ([a-z]+):$`).FindAllStringSubmatchIndex(text, -1)
	builds, signs := 0, 0
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		name, job := text[at[2]:at[3]], text[at[1]:end]
		made := regexp.MustCompile(`make release(-dry-run)?\b[^-]|\bsudo\b|install-packages`).MatchString(job)
		trusted := regexp.MustCompile(`: write\b|make release-(sign|push)\b`).MatchString(job)
		if made {
			builds++
		}
		if trusted {
			signs++
			if !strings.Contains(job, `"$(sha256sum <"$RUNNER_TEMP/dist.tar")" = "$DIGEST"`) || !regexp.MustCompile(`needs: .*\bbuild\b`).MatchString(job) {
				t.Errorf("job %s signs what it has not checked", name)
			}
		}
		if made && (trusted || strings.Contains(job, "secrets.")) {
			t.Errorf("job %s builds, and may write, sign or read a secret", name)
		}
	}
	if builds != 1 || signs != 1 || len(starts) < 2 {
		t.Errorf("%d jobs, of which %d build and %d sign", len(starts), builds, signs)
	}
}
