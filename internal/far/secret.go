package far

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fenceagent"
	"belay.dev/belay/internal/kube"
)

// Secret is a Secret that FenceSources need: FAR has up to two for a node, whose keys are parameters of a command line.
type Secret struct {
	Namespace, Name string
	// Node is the one that the Secret is for; empty for one that several nodes share.
	Node string
	// From are FAR's Secrets in the same namespace; the later counts.
	From []string
	// Lacks are options that are in no Secret of FAR's. They have the values of Node.
	Lacks []string
	// Addresses are where it is to be sent, for its annotation, and Plain is why it would also have to allow plain protocols.
	Addresses []string
	Plain     string
}

func secretOf(node string) string { return "belay-node-" + node }

// secret returns the Secret of a feed: one for all nodes that have FAR's shared one, and need nothing else. What is to be added may have another value for each
// node, and another template of the same shared Secret may have none: a password goes to no BMC that FAR does not send it to.
func (c *converter) secret(t *Template, node string, feed *fencingv1.Feed, lacks []string) *fencingv1.SecretReference {
	spec, s := &t.Spec.Template.Spec, Secret{Namespace: t.Namespace, Name: secretOf(node), Node: node}
	for _, secret := range []string{spec.SharedSecretName, spec.NodeSecretNames[node]} {
		switch {
		case secret == "":
		case len(validation.IsDNS1123Subdomain(secret)) > 0:
			c.note("template %s/%s: %q is no name of a Secret: left out", t.Namespace, t.Name, secret)
		default:
			s.From = append(s.From, secret)
		}
	}
	if len(s.From)+len(lacks) == 0 {
		return nil
	}
	if shared := "belay-shared-" + spec.SharedSecretName; spec.NodeSecretNames[node] == "" && len(s.From) == 1 && len(lacks) == 0 && len(shared) <= validation.DNS1123SubdomainMaxLength {
		s.Name, s.Node = shared, ""
	}
	at := slices.IndexFunc(c.out.Secrets, func(o Secret) bool { return o.Namespace == s.Namespace && o.Name == s.Name })
	if at < 0 {
		at, c.out.Secrets = len(c.out.Secrets), append(c.out.Secrets, s)
	}
	c.out.Secrets[at].bind(feed, lacks)
	return &fencingv1.SecretReference{Namespace: s.Namespace, Name: s.Name}
}

// bind adds what the Secret must allow for a feed (ADR 35).
func (s *Secret) bind(feed *fencingv1.Feed, lacks []string) {
	options := map[string]string{}
	for key, value := range feed.Options {
		options[key] = string(value)
	}
	var inSecret map[string][]byte
	if options["ip"]+options["ipaddr"] == "" {
		inSecret = map[string][]byte{"ip": []byte("of the Secret")} // an agent without any address needs a line that FenceReady has
	}
	missing := fenceagent.Binding{}.Missing(feed.Agent, options, inSecret)
	add := func(to []string, words ...string) []string {
		to = append(to, words...)
		slices.Sort(to)
		return slices.Compact(to)
	}
	s.Addresses, s.Lacks = add(s.Addresses, missing.Addresses...), add(s.Lacks, lacks...)
	if s.Plain == "" {
		s.Plain = missing.Plain
	}
}

// Command makes the Secret from FAR's, without showing what is in them, and says where it may be sent.
func (s *Secret) Command() string {
	command := fmt.Sprintf("kubectl create secret generic -n %s %s --from-env-file=/dev/stdin", s.Namespace, s.Name)
	if len(s.From) > 0 {
		command = fmt.Sprintf(`kubectl get secret -n %[1]s %[3]s -o json | jq '{apiVersion: "v1", kind: "Secret", metadata: {namespace: "%[1]s", name: "%[2]s"}, `+
			`data: ([(.items // [.])[].data // {}] | add | with_entries(.key |= (ltrimstr("--") | gsub("-"; "_"))) | del(.action))}' | kubectl create -f -`,
			s.Namespace, s.Name, strings.Join(s.From, " "))
	}
	if len(s.Addresses) > 0 {
		command += fmt.Sprintf(" && kubectl annotate secret -n %s %s %s=%s", s.Namespace, s.Name, kube.AddressesAnnotation, explain.ShellWord(strings.Join(s.Addresses, ",")))
	}
	return command
}

// Steps are what a person has to do besides creating the FenceSources.
func (i *Import) Steps() (steps []explain.Step) {
	names := make([]string, 0, len(i.Secrets))
	for at := range i.Secrets {
		s := &i.Secrets[at]
		names = append(names, "{namespace: "+s.Namespace+", name: "+s.Name+"}")
		steps = append(steps, s.steps()...)
	}
	if len(names) > 0 {
		steps = append(steps, explain.Step{Text: "Let the fencer read these Secrets: add them to the value recovery.secrets of the chart: " + strings.Join(names, ", ")})
	}
	for _, agent := range i.Untested {
		steps = append(steps, explain.Step{Text: fmt.Sprintf("Test what %s calls OFF on a drained node that is on, paused, suspended, shutting down and off, and write who did so, and how, into offTested of its feeds: "+
			"belay has not tested this agent (docs/recovery/power-switches.md)", agent)})
	}
	if len(i.Sources) > 0 {
		steps = append(steps, explain.Step{Text: "Look what each node still lacks until it is ready to be fenced.", Command: "kubectl get fencesources"},
			explain.Step{Text: "Then name belay in the NodeHealthCheck in place of FAR's template, so that one remediator has the power switch (docs/nodehealthcheck.md)"})
	}
	return steps
}

func (s *Secret) steps() []explain.Step {
	made := explain.Step{Text: fmt.Sprintf("Make Secret %s/%s.", s.Namespace, s.Name), Command: s.Command()}
	switch {
	case len(s.From) == 0:
		made.Text += fmt.Sprintf(" Type a line KEY=VALUE for each of %s, with the value that the template has for node %s, and end it with Ctrl-D", strings.Join(s.Lacks, ", "), s.Node)
	case len(s.Lacks) > 0:
		made.Text += fmt.Sprintf(" Add the keys %s to it, with the values that the template has for node %s", strings.Join(s.Lacks, ", "), s.Node)
	default:
		made.Text += " It has the keys of FAR's " + strings.Join(s.From, " and ") + ", as options of the agent; {{.NodeName}} in a value is not filled in"
	}
	if len(s.Addresses) > 0 {
		made.Danger = "the fencer sends the password to " + strings.Join(s.Addresses, ", ") + ": look whether these are the power switches"
	}
	if s.Plain == "" {
		return []explain.Step{made}
	}
	return []explain.Step{made, {
		Text: fmt.Sprintf("Better let the switch speak a protocol that is safe; if Secret %s/%s does not set it, and may be used all the same, say so.", s.Namespace, s.Name), Danger: s.Plain,
		Command: fmt.Sprintf("kubectl annotate secret -n %s %s %s=true", s.Namespace, s.Name, kube.AllowPlainAnnotation),
	}}
}
