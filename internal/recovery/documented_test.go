package recovery

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fenceagent"
)

// TestDocumentedSources: the API server accepts each FenceSource of docs/recovery/power-switches.md, without a field that it does not know,
// and each agent that is installed here has the options, and its Off counts. The Secrets that they
// name are on the page too, and are for their addresses.
func TestDocumentedSources(t *testing.T) {
	page, err := os.ReadFile("../../docs/recovery/power-switches.md")
	must(t, err)
	s := newSite(t)
	secrets, sources := map[string]*corev1.Secret{}, 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for document := range strings.SplitSeq(block[1], "---\n") {
			object := &unstructured.Unstructured{}
			must(t, yaml.UnmarshalStrict([]byte(document), object))
			if object.GetKind() == "Secret" {
				secret := &corev1.Secret{}
				must(t, yaml.UnmarshalStrict([]byte(document), secret))
				secret.Data = map[string][]byte{}
				for key, value := range secret.StringData {
					secret.Data[key] = []byte(value)
				}
				secrets[secret.Name] = secret
				continue
			}
			must(t, s.client.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict")))
			source := &fencingv1.FenceSource{}
			must(t, yaml.UnmarshalStrict([]byte(document), source))
			sources++
			for _, level := range source.Spec.Levels {
				for _, feed := range level.Feeds {
					checkFeed(t, feed, secrets)
				}
			}
		}
	}
	if sources < 3 {
		t.Errorf("only %d FenceSources were found: the test looks at too little", sources)
	}
}

// checkFeed configures the agent of a feed as the fencer does, if it is installed.
func checkFeed(t *testing.T, feed fencingv1.Feed, secrets map[string]*corev1.Secret) {
	t.Helper()
	var data map[string][]byte
	if ref := feed.SecretRef; ref != nil {
		secret := secrets[ref.Name]
		if secret == nil {
			t.Fatalf("the Secret %s is not on the page", ref.Name)
		}
		if err := unbound(secret, feed); err != nil {
			t.Error(err)
		}
		data = maps.Clone(secret.Data)
	}
	path, err := fenceagent.Find("/usr/sbin", feed.Agent)
	if err != nil {
		t.Logf("NOT CHECKED: the options of %s: %v", feed.Agent, err)
		return
	}
	options := map[string]string{}
	for key, value := range feed.Options {
		options[key] = string(value)
	}
	_, err = fenceagent.New(t.Context(), path, options, feed.Plug, data)
	if err == nil {
		err = fenceagent.Believe(t.Context(), path, feed.OffTested)
	}
	if err != nil && !errors.As(err, new(fenceagent.AgentError)) {
		t.Errorf("%s: %v", feed.Agent, err)
	}
}
