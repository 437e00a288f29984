package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// krewPlugin is krew's v1alpha2 Plugin, as far as the manifest uses it: an unknown field is an error.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Caveats          string         `json:"caveats"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
	Files  []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
}

// TestKrewManifest: each platform's archive is made of files that the repository has, and the program is one of them.
func TestKrewManifest(t *testing.T) {
	raw, err := os.ReadFile("krew/belay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var p krewPlugin
	if err := yaml.UnmarshalStrict(raw, &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "belay" {
		t.Errorf("not the plugin belay: %s %s %s", p.APIVersion, p.Kind, p.Metadata.Name)
	}
	if len(p.Spec.ShortDescription) > 50 || strings.HasSuffix(p.Spec.ShortDescription, ".") {
		t.Errorf("krew refuses the short description %q", p.Spec.ShortDescription)
	}
	const program = "cmd/kubectl-belay/main.go"
	unix := map[string]string{"kubectl-belay": program, "kubectl_complete-belay": "cmd/kubectl-belay/kubectl_complete-belay", "LICENSE": "LICENSE"}
	windows := map[string]string{"kubectl-belay.exe": program, "LICENSE": "LICENSE"} // a shell script completes nothing there
	seen := map[string]bool{}
	for _, platform := range p.Spec.Platforms {
		system, arch := platform.Selector.MatchLabels["os"], platform.Selector.MatchLabels["arch"]
		sources, packed := unix, "tar.gz"
		if system == "windows" {
			sources, packed = windows, "zip"
		}
		if want := fmt.Sprintf("RELEASE_URL/kubectl-belay_%s_%s.%s", system, arch, packed); platform.URI != want || seen[want] {
			t.Errorf("the archive is %s, want %s, once", platform.URI, want)
		}
		seen[platform.URI] = true
		if want := strings.ToUpper("SHA256_" + system + "_" + arch); platform.SHA256 != want {
			t.Errorf("the checksum of %s is %s, want the placeholder %s", platform.URI, platform.SHA256, want)
		}
		files := map[string]bool{}
		for _, f := range platform.Files {
			files[f.From] = true
			if _, err := os.Stat(filepath.Join("..", sources[f.From])); sources[f.From] == "" || err != nil {
				t.Errorf("%s: no source of %s (%v)", platform.URI, f.From, err)
			}
		}
		if len(files) != len(sources) || !files[platform.Bin] {
			t.Errorf("%s has the files %v, want %v", platform.URI, files, sources)
		}
	}
	if len(seen) != 5 {
		t.Errorf("got %d platforms, want 5", len(seen))
	}
}
