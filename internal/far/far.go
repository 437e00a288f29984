// Package far turns the templates of fence-agents-remediation (FAR, medik8s) into FenceSources. It reads names of Secrets, and no Secret.
package far

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fenceagent"
)

// Template is a FenceAgentsRemediationTemplate, as far as it is read (fence-agents-remediation v0.7.0 api/v1alpha1/fenceagentsremediation_types.go:46-120).
type Template struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Template struct {
			Spec Spec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// Spec says how FAR runs the agent.
type Spec struct {
	Agent            string                       `json:"agent"`
	SharedParameters map[string]string            `json:"sharedparameters"`
	NodeParameters   map[string]map[string]string `json:"nodeparameters"`
	SharedSecretName string                       `json:"sharedSecretName"`
	NodeSecretNames  map[string]string            `json:"nodeSecretNames"`
}

// Import is what the templates become.
type Import struct {
	// Sources are in the order of their names. The template of each is in From.
	Sources []fencingv1.FenceSource
	From    []string
	Secrets []Secret
	// Untested are the agents whose Off counts only with a person's word, and AllNodes is set if a template names no node.
	Untested []string
	AllNodes bool
	// Notes are what is different from what FAR does, or was left out.
	Notes []string
}

// Convert turns templates into FenceSources. The nodes are those of the cluster, for templates that name none.
func Convert(templates []Template, nodes []string) Import {
	templates = slices.SortedFunc(slices.Values(templates), func(x, y Template) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	c := converter{taken: map[string]string{}, noted: map[string]bool{}}
	for i := range templates {
		c.template(&templates[i], nodes)
	}
	if len(c.out.Sources) > 0 {
		c.note("FAR reboots a machine by default and believes that its agent exited with 0. belay proves Off: it switches the machine off, reads Off back twice, and leaves it off. Start it by hand")
		c.note("retrycount, retryinterval, timeout and remediationStrategy have no counterpart: belay asks until the switch answers, and moves volumes by the out-of-service taint")
	}
	slices.Sort(c.out.Untested)
	c.out.Untested = slices.Compact(c.out.Untested)
	return c.out
}

type converter struct {
	out   Import
	taken map[string]string // the template of each node
	noted map[string]bool
}

func (c *converter) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !c.noted[text] {
		c.noted[text] = true
		c.out.Notes = append(c.out.Notes, text)
	}
}

// named are the nodes that a template names (v0.7.0 api/v1alpha1/fenceagentsremediation_params.go, GetNodeNamesFromSpec).
func (s *Spec) named() []string {
	found := map[string]bool{}
	for _, values := range s.NodeParameters {
		for node := range values {
			found[node] = true
		}
	}
	for node := range s.NodeSecretNames {
		found[node] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// unusable is why a template becomes nothing.
func unusable(t *Template) string {
	agent := t.Spec.Template.Spec.Agent
	switch k, _ := fenceagent.Lookup(agent); {
	case len(validation.IsDNS1123Label(t.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(t.Name)) > 0:
		return "its name or namespace is none"
	case !fenceagent.ValidName(agent) || len(agent) > validation.DNS1123SubdomainMaxLength:
		return fmt.Sprintf("%q is no name of an agent", agent)
	case k.Lies != "":
		return fmt.Sprintf("%s also calls OFF %s. Use another agent, or a command of your own", agent, k.Lies)
	}
	return ""
}

func (c *converter) template(t *Template, nodes []string) {
	spec, name := &t.Spec.Template.Spec, t.Namespace+"/"+t.Name
	if why := unusable(t); why != "" {
		c.note("template %q is left out: %s", name, why)
		return
	}
	named := spec.named()
	if len(named) == 0 {
		c.out.AllNodes, named = true, nodes
	}
	for _, node := range named {
		if len(validation.IsDNS1123Subdomain(node)) > 0 || len(secretOf(node)) > validation.DNS1123SubdomainMaxLength {
			c.note("template %s: %q is left out: it is no name of a node, or is too long", name, node)
			continue
		}
		if first := c.taken[node]; first != "" {
			c.note("node %s is in template %s too: its FenceSource is from %s; add the other switch as a second level by hand", node, name, first)
			continue
		}
		c.taken[node] = name
		c.node(t, node)
	}
}

// node makes the FenceSource of one node.
func (c *converter) node(t *Template, node string) {
	spec, name := &t.Spec.Template.Spec, t.Namespace+"/"+t.Name
	values := map[string]string{}
	for key, value := range spec.SharedParameters {
		rendered, ok := render(value, node)
		if !ok {
			c.note("template %s: %q is left out: in its value, nothing but {{.NodeName}} is filled in", name, key)
			continue
		}
		values[key] = rendered
	}
	for key, of := range spec.NodeParameters { // they count more than the shared ones, and are not filled in: fenceagentsremediation_params.go:279-292
		if value, ok := of[node]; ok {
			values[key] = value
		}
	}
	feed := fencingv1.Feed{Agent: spec.Agent}
	var lacks []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if option := c.option(&feed, name, key, values[key]); option != "" {
			lacks = append(lacks, option)
		}
	}
	feed.SecretRef = c.secret(t, node, &feed, lacks)
	if _, read := fenceagent.Lookup(feed.Agent); !read {
		c.out.Untested = append(c.out.Untested, feed.Agent)
	}
	at, _ := slices.BinarySearchFunc(c.out.Sources, node, func(s fencingv1.FenceSource, node string) int { return strings.Compare(s.Name, node) })
	c.out.From = slices.Insert(c.out.From, at, name)
	c.out.Sources = slices.Insert(c.out.Sources, at, fencingv1.FenceSource{
		TypeMeta:   metav1.TypeMeta{APIVersion: fencingv1.GroupVersion.String(), Kind: "FenceSource"},
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       fencingv1.FenceSourceSpec{Levels: []fencingv1.FenceLevel{{Feeds: []fencingv1.Feed{feed}}}},
	})
}

var (
	// hidden are options whose values other clients should not read in a FenceSource.
	hidden = regexp.MustCompile(`pass|secret|token|community|key|credential`)
	// Bounds of the FenceSource's schema.
	longestOption, longestValue, longestPlug = 63, 1023, 253
)

// option adds one parameter of a command line, as the agent's option on standard input is called. It returns the name of one that belongs into the Secret.
func (c *converter) option(feed *fencingv1.Feed, template, key, value string) (ofSecret string) {
	option := strings.ReplaceAll(strings.TrimPrefix(key, "--"), "-", "_")
	if option == "action" {
		if value != "" && value != "reboot" && value != "off" {
			c.note("template %s: the action %q is none of FAR's", template, value)
		}
		return ""
	}
	if value == "" && !isPlug(option) && fenceagent.IsSwitch(feed.Agent, option) {
		value = "1" // a parameter without a value is a switch
	}
	switch why, ofSecret := leftOut(feed.Agent, option, value); {
	case why != "":
		c.note("template %s: %q is left out: %s", template, key, why)
		if ofSecret {
			return option
		}
	case isPlug(option) && feed.Plug != "" || feed.Options[option] != "":
		c.note("template %s: %q is left out: another parameter is the same option", template, key)
	case isPlug(option):
		feed.Plug = value
	default:
		if feed.Options == nil {
			feed.Options = map[string]fencingv1.FeedOption{}
		}
		feed.Options[option] = fencingv1.FeedOption(value)
	}
	return ""
}

func isPlug(option string) bool { return option == "plug" || option == "port" }

// leftOut is why an option is not in the FenceSource, and whether it belongs into the Secret.
func leftOut(agent, option, value string) (why string, ofSecret bool) {
	switch {
	case value == "":
		return "it has no value", false
	case isPlug(option) && (len(value) > longestPlug || strings.ContainsAny(value, "\n\x00")):
		return "its value is too long, or has a newline", false
	case isPlug(option):
		return "", false
	case !fenceagent.ValidOption(option) || len(option) > longestOption:
		return "it is no option that an agent reads on its standard input", false
	case hidden.MatchString(option):
		return "it is in plain text, and belongs into the Secret", true
	case fenceagent.Reserved(option):
		return "belay sets it itself, or it would change what an answer means", false
	case len(value) > longestValue || fenceagent.CheckValue(agent, option, value) != nil:
		return "with this value belay takes it from the Secret only", true
	}
	return "", false
}

// nodeName is what FAR's templates have in place of the name of the node (fence-agents-remediation v0.7.0 pkg/template/template.go:26).
var nodeName = regexp.MustCompile(`\{\{-?\s*\.NodeName\s*-?\}\}`)

// render fills in the name of the node, and reports whether there is nothing else to fill in.
func render(value, node string) (string, bool) {
	value = nodeName.ReplaceAllLiteralString(value, node)
	return value, !strings.Contains(value, "{{")
}
