package bundle

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"belay.dev/belay/internal/redact"
)

// Removed stands for what was taken out.
const Removed = redact.Removed

// Redactor takes out what may be secret. Its methods must not be called in parallel.
type Redactor struct {
	// MayName reports whether a namespace may appear.
	MayName func(namespace string) bool
	// Hide takes the names from other namespaces out of a text; nil if all may appear.
	Hide func(text string) string
	// Names replaces names; nil to keep them.
	Names *Pseudonyms

	// secrets are the names of Secrets that objects refer to: messages and logs may have them too.
	secrets map[string]bool
}

// dropped are the fields that are removed: they are large, may hold secrets that look like any other text, or addresses.
var dropped = map[string]bool{
	"command": true, "args": true, "lifecycle": true, "livenessProbe": true, "readinessProbe": true, "startupProbe": true, // passwords as arguments
	"fieldsV1": true, "images": true, "addresses": true, "hostIP": true, "hostIPs": true, "podIP": true, "podIPs": true, "podCIDR": true, "podCIDRs": true,
}

// opaque are maps and lists of strings that only a driver understands: their keys stay, their values go.
var opaque = map[string]bool{
	"volumeAttributes": true, "attachmentMetadata": true, "parameters": true, "mountOptions": true, "options": true,
}

var secretKey = regexp.MustCompile(`(?i)secret|password|token$|credential`)

// Object takes out what may be secret from an object, in place.
func (r *Redactor) Object(o *unstructured.Unstructured) {
	if metadata, ok := o.Object["metadata"].(map[string]any); ok {
		r.metadata(metadata)
	}
	for key, value := range o.Object {
		if key != "metadata" && key != "apiVersion" && key != "kind" {
			o.Object[key] = r.value(key, value)
		}
	}
}

// kept are the domains of annotations whose values Kubernetes and belay define. Those of others may be anything.
var kept = regexp.MustCompile(`^([a-z0-9.-]+\.)?(kubernetes\.io|k8s\.io|belay\.dev)/`)

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

func (r *Redactor) metadata(m map[string]any) {
	if annotations, ok := m["annotations"].(map[string]any); ok {
		for key, value := range annotations {
			switch {
			case key == lastApplied:
				delete(annotations, key)
			case secretKey.MatchString(key):
				r.learn(key, value)
				annotations[key] = Removed
			case !kept.MatchString(key):
				annotations[key] = Removed
			}
		}
	}
	for key, value := range m {
		switch {
		case key == "labels" && r.Names != nil:
			m[key] = r.labels(value)
		case key == "generateName" && r.Names != nil:
			delete(m, key)
		case key == "ownerReferences" && r.Names != nil:
			r.owners(value)
		case key == "annotations", key == "labels": // their keys are no fields of the API
			m[key] = r.texts(value)
		default:
			m[key] = r.value(key, value)
		}
	}
}

// labels keeps those of Kubernetes: the names of others show what runs.
func (r *Redactor) labels(value any) any {
	labels, _ := value.(map[string]any)
	for key := range labels {
		if !kept.MatchString(key) || strings.HasPrefix(key, "app.") {
			delete(labels, key)
		}
	}
	return r.texts(labels)
}

// owners replaces the names of owners: those that have no pseudonym go, such as that of a StatefulSet without pods.
func (r *Redactor) owners(value any) {
	list, _ := value.([]any)
	for _, inner := range list {
		owner, _ := inner.(map[string]any)
		name, _ := owner["name"].(string)
		if other := r.Names.of[name]; other != "" {
			owner["name"] = other
		} else if name != "" {
			owner["name"] = Removed
		}
	}
}

// texts redacts the strings of a map.
func (r *Redactor) texts(value any) any {
	m, ok := value.(map[string]any)
	if !ok {
		return value
	}
	for key, v := range m {
		if text, ok := v.(string); ok {
			m[key] = r.Text(text)
		}
	}
	return m
}

func (r *Redactor) value(key string, value any) any {
	_, isBool := value.(bool)
	switch {
	case dropped[key]:
		return Removed
	case secretKey.MatchString(key) && !isBool:
		r.learn(key, value)
		return Removed
	case opaque[key]:
		return r.hollow(value)
	case key == "claimRef":
		if m, ok := value.(map[string]any); ok {
			if namespace, _ := m["namespace"].(string); !r.MayName(namespace) {
				return Removed
			}
		}
	}
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			v[name] = r.value(name, inner)
		}
	case []any:
		for i, inner := range v {
			if m, ok := inner.(map[string]any); ok && key == "env" {
				hollowEnv(m)
			}
			v[i] = r.value("", inner)
		}
	case string:
		return r.Text(v)
	}
	return value
}

// hollowEnv removes the value of an environment variable.
func hollowEnv(variable map[string]any) {
	if _, ok := variable["value"]; ok {
		variable["value"] = Removed
	}
}

// hollow removes the values of a map or list, and keeps the keys of a map.
func (r *Redactor) hollow(value any) any {
	m, ok := value.(map[string]any)
	if !ok {
		return Removed
	}
	for key, v := range m {
		if secretKey.MatchString(key) {
			r.learn(key, v)
		}
		m[key] = Removed
	}
	return m
}

// learn remembers the names of Secrets in what is removed.
func (r *Redactor) learn(key string, value any) {
	switch v := value.(type) {
	case string:
		if r.secrets == nil {
			r.secrets = map[string]bool{}
		}
		if !strings.HasSuffix(strings.ToLower(key), "namespace") {
			r.secrets[v] = true
		}
	case map[string]any:
		for name, inner := range v {
			if name == "name" || name == "secretName" {
				r.learn(name, inner)
			}
		}
	case []any:
		for _, inner := range v {
			r.learn(key, inner)
		}
	}
}

// Text takes out of a text what looks like a secret, and names that must not appear.
func (r *Redactor) Text(text string) string {
	text = redact.Secrets(text)
	if r.Hide != nil {
		text = r.Hide(text)
	}
	if r.Names != nil {
		text = r.Names.Replace(text)
	}
	return text
}

var (
	word = regexp.MustCompile(`[a-zA-Z0-9](?:[-a-zA-Z0-9._]*[a-zA-Z0-9])?`)
	// field is the beginning of a line of YAML up to the value.
	field = regexp.MustCompile(`^[\s-]*[a-zA-Z0-9]+:(\s|$)`)
)

// finish takes the names of Secrets out of a file: they are known once all objects were read. The fields of YAML stay.
func (r *Redactor) finish(content string, isYAML bool) string {
	if len(r.secrets) == 0 {
		return content
	}
	lines := strings.Split(content, "\n")
	for i, line := range lines {
		start := 0
		if isYAML {
			start = len(field.FindString(line))
		}
		lines[i] = line[:start] + word.ReplaceAllStringFunc(line[start:], func(found string) string {
			if r.secrets[found] {
				return Removed
			}
			return found
		})
	}
	return strings.Join(lines, "\n")
}
