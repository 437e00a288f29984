package far

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
)

// sample is FAR's own example: fence-agents-remediation v0.7.0 config/samples/fence-agents-remediation_v1alpha1_fenceagentsremediationtemplate.yaml.
func sample(t *testing.T) Template {
	t.Helper()
	text, err := os.ReadFile("testdata/template-v0.7.0.yaml")
	if err != nil {
		t.Fatal(err)
	}
	x := Template{}
	if err := yaml.Unmarshal(text, &x); err != nil {
		t.Fatal(err)
	}
	x.Namespace = "far"
	return x
}

// TestSample: each node that FAR's example names gets a FenceSource with the options that the agent reads on its standard input, and a Secret from FAR's two.
func TestSample(t *testing.T) {
	got := Convert([]Template{sample(t)}, []string{"not-named"})
	if len(got.Sources) != 6 || len(got.Secrets) != 6 {
		t.Fatalf("%d FenceSources, %d Secrets", len(got.Sources), len(got.Secrets))
	}
	i := slices.IndexFunc(got.Secrets, func(s Secret) bool { return s.Name == "belay-node-worker-1" })
	text, err := yaml.Marshal(got.Sources[slices.IndexFunc(got.Sources, func(s fencingv1.FenceSource) bool { return s.Name == "worker-1" })].Spec)
	if err != nil {
		t.Fatal(err)
	}
	want := `levels:
- feeds:
  - agent: fence_ipmilan
    options:
      ip: 192.168.111.1
      ipport: "6234"
      lanplus: "1"
    secretRef:
      name: belay-node-worker-1
      namespace: far
`
	if string(text) != want {
		t.Errorf("got\n%swant\n%s", text, want)
	}
	for _, part := range []string{
		"kubectl get secret -n far fence-agents-credentials-shared fence-agents-credentials-worker1 -o json | jq ",
		" | kubectl create -f - && kubectl annotate secret -n far belay-node-worker-1 fencing.belay.dev/addresses=192.168.111.1",
	} {
		if command := got.Secrets[i].Command(); !strings.Contains(command, part) {
			t.Errorf("no %q in %s", part, command)
		}
	}
	if s := got.Secrets[i]; s.Plain != "" || len(s.Lacks) > 0 || len(got.Untested) > 0 || got.AllNodes {
		t.Errorf("%+v %+v", s, got)
	}
	if !slices.ContainsFunc(got.Notes, func(n string) bool { return strings.HasPrefix(n, "FAR reboots a machine by default") }) {
		t.Errorf("%q", got.Notes)
	}
}

// TestParameters: what belay sets itself, what would be a password in plain text and what names a program stays out, and a note reports it. The name of the node is
// filled in, as in FAR's README (v0.7.0, "NodeName Template Support").
func TestParameters(t *testing.T) {
	x := Template{}
	x.Namespace, x.Name = "far", "t"
	x.Spec.Template.Spec = Spec{Agent: "fence_redfish", SharedParameters: map[string]string{
		"--systems-uri": "/redfish/v1/Systems/{{.NodeName}}", "--ip": "{{ .NodeName }}.example.com", "--ssl-insecure": "", "--username": "admin",
		"--password": "secret-word", "--action": "reboot", "--ipmitool-path": "/tmp/x", "--missing-as-off": "", "--Odd": "x", "--other": `{{printf "%s" .NodeName}}`,
		"--other-option": "1", "--ipport": "",
	}, NodeParameters: map[string]map[string]string{"--plug": {"a": "1"}}}
	got := Convert([]Template{x}, nil)
	if len(got.Sources) != 1 || len(got.Secrets) != 1 {
		t.Fatalf("%+v", got)
	}
	if s := got.Secrets[0]; !slices.Equal(s.Lacks, []string{"other_option", "password"}) || s.Command() != "kubectl create secret generic -n far belay-node-a --from-env-file=/dev/stdin && "+
		"kubectl annotate secret -n far belay-node-a fencing.belay.dev/addresses=a.example.com" || !strings.Contains(s.Plain, "ssl_insecure") {
		t.Errorf("%+v\n%s", s, s.Command())
	}
	feed := got.Sources[0].Spec.Levels[0].Feeds[0]
	text, err := yaml.Marshal(feed)
	if err != nil {
		t.Fatal(err)
	}
	want := `agent: fence_redfish
options:
  ip: a.example.com
  ssl_insecure: "1"
  systems_uri: /redfish/v1/Systems/a
  username: admin
plug: "1"
secretRef:
  name: belay-node-a
  namespace: far
`
	if string(text) != want {
		t.Errorf("got\n%swant\n%s", text, want)
	}
	notes := strings.Join(got.Notes, "\n")
	for _, said := range []string{`"--password" is left out: it is in plain text`, `"--ipmitool-path" is left out: belay sets it itself`, `"--missing-as-off" is left out: belay sets`, `"--Odd" is left out`, `"--other" is left out`,
		`"--other-option" is left out: with this value belay takes it from the Secret only`, `"--ipport" is left out: it has no value`} {
		if !strings.Contains(notes, said) {
			t.Errorf("%q is not said in\n%s", said, notes)
		}
	}
	if strings.Contains(notes+string(text), "secret-word") {
		t.Error("the password shows")
	}
}

// TestWhichNodes: a template that names no node is for all of the cluster, and the first template of a node counts.
func TestWhichNodes(t *testing.T) {
	all := Template{}
	all.Namespace, all.Name = "b", "all"
	all.Spec.Template.Spec = Spec{Agent: "fence_x", SharedParameters: map[string]string{"--ip": "{{.NodeName}}"}}
	one := Template{}
	one.Namespace, one.Name = "a", "one"
	one.Spec.Template.Spec = Spec{Agent: "fence_y", NodeSecretNames: map[string]string{"n1": "s", "n2; rm -rf /": "s"}}
	got := Convert([]Template{all, one}, []string{"n1", "n2"})
	agents := map[string]string{}
	for _, s := range got.Sources {
		agents[s.Name] = s.Spec.Levels[0].Feeds[0].Agent
	}
	if !got.AllNodes || !slices.Equal(got.Untested, []string{"fence_x", "fence_y"}) || !slices.Equal(got.From, []string{"a/one", "b/all"}) {
		t.Errorf("%+v", got)
	}
	if len(agents) != 2 || agents["n1"] != "fence_y" || agents["n2"] != "fence_x" {
		t.Errorf("%v", agents)
	}
	notes := strings.Join(got.Notes, "\n")
	for _, said := range []string{"node n1 is in template b/all too", `"n2; rm -rf /" is left out: it is no name of a node`} {
		if !strings.Contains(notes, said) {
			t.Errorf("%q is not said in\n%s", said, notes)
		}
	}
	if got := Convert([]Template{{}}, nil); len(got.Sources) != 0 || len(got.Notes) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestHostile: a template of any text becomes nothing that the FenceSource's schema or a shell would take for something else, and a note names what is left out.
func TestHostile(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for name, tc := range map[string]struct {
		agent      string
		shared     map[string]string
		node       string
		sources    int
		options    int
		plug, says string
	}{
		"an agent with a path":          {agent: "/tmp/fence_x", node: "n", says: `"/tmp/fence_x" is no name of an agent`},
		"no agent":                      {node: "n", says: `"" is no name of an agent`},
		"an agent's name that is long":  {agent: "fence_" + long, node: "n", says: "is no name of an agent"},
		"an agent that lies":            {agent: "fence_virsh", node: "n", says: "fence_virsh also calls OFF"},
		"a node's name that is long":    {agent: "fence_x", node: strings.Repeat("n", 250), says: "is too long"},
		"a node's name with a newline":  {agent: "fence_x", node: "n\nkind: Secret", says: `"n\nkind: Secret" is left out`},
		"a key with a newline":          {agent: "fence_x", node: "n", shared: map[string]string{"--a\n- b": "1"}, sources: 1, says: `"--a\n- b" is left out`},
		"a key that is long":            {agent: "fence_x", node: "n", shared: map[string]string{"--" + long: "1"}, sources: 1, says: "is no option that an agent reads"},
		"a short option":                {agent: "fence_x", node: "n", shared: map[string]string{"-a": "192.0.2.1"}, sources: 1, says: `"-a" is left out`},
		"a value with spaces":           {agent: "fence_x", node: "n", shared: map[string]string{"--zone": "a b"}, sources: 1, says: `"--zone" is left out: with this value`},
		"a value that is long":          {agent: "fence_x", node: "n", shared: map[string]string{"--zone": long}, sources: 1, says: `"--zone" is left out: with this value`},
		"a host in another option":      {agent: "fence_ipmilan", node: "n", shared: map[string]string{"--cipher": "3 -H 198.51.100.1"}, sources: 1, says: `"--cipher" is left out: with this value`},
		"an address that is none":       {agent: "fence_ipmilan", node: "n", shared: map[string]string{"--ip": "$(id)"}, sources: 1, says: `"--ip" is left out: with this value`},
		"a key that the agent has not":  {agent: "fence_ipmilan", node: "n", shared: map[string]string{"--unknown": "1"}, sources: 1, says: `"--unknown" is left out: with this value`},
		"a community":                   {agent: "fence_x", node: "n", shared: map[string]string{"--community": "word"}, sources: 1, says: `"--community" is left out: it is in plain text`},
		"a plug with a newline":         {agent: "fence_x", node: "n", shared: map[string]string{"--plug": "1\n2"}, sources: 1, says: `"--plug" is left out`},
		"a plug that is long":           {agent: "fence_x", node: "n", shared: map[string]string{"--port": long}, sources: 1, says: `"--port" is left out`},
		"a plug with spaces":            {agent: "fence_x", node: "n", shared: map[string]string{"--port": "my vm"}, sources: 1, plug: "my vm"},
		"a plug without a value":        {agent: "fence_x", node: "n", shared: map[string]string{"--plug": ""}, sources: 1, says: `"--plug" is left out: it has no value`},
		"two plugs":                     {agent: "fence_x", node: "n", shared: map[string]string{"--plug": "1", "--port": "2"}, sources: 1, plug: "1", says: `"--port" is left out: another parameter`},
		"one option twice":              {agent: "fence_x", node: "n", shared: map[string]string{"--a-b": "1", "--a_b": "2"}, sources: 1, options: 1, says: `"--a_b" is left out: another parameter`},
		"another action":                {agent: "fence_x", node: "n", shared: map[string]string{"--action": "on"}, sources: 1, says: `the action "on" is none of FAR's`},
		"an option of an unknown agent": {agent: "fence_x", node: "n", shared: map[string]string{"--zone": "a"}, sources: 1, options: 1},
	} {
		x := Template{}
		x.Namespace, x.Name = "far", "t"
		x.Spec.Template.Spec = Spec{Agent: tc.agent, SharedParameters: tc.shared, NodeParameters: map[string]map[string]string{"--power-wait": {tc.node: "0"}}}
		got := Convert([]Template{x}, nil)
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, tc.says) || strings.Contains(notes, "word") {
			t.Errorf("%s: %q is not said in\n%s", name, tc.says, notes)
		}
		if len(got.Sources) != tc.sources {
			t.Errorf("%s: %d FenceSources", name, len(got.Sources))
			continue
		}
		for _, s := range got.Sources {
			if f := s.Spec.Levels[0].Feeds[0]; len(f.Options) != tc.options+1 || f.Plug != tc.plug { // and power_wait
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
	x := Template{}
	x.Namespace, x.Name = "far; id", "t"
	x.Spec.Template.Spec.Agent = "fence_x"
	if got := Convert([]Template{x}, []string{"n"}); len(got.Sources) != 0 || !strings.Contains(strings.Join(got.Notes, ""), `"far; id/t" is left out`) {
		t.Errorf("%+v", got)
	}
}

// TestSharedSecret: nodes that have FAR's shared Secret alone have one Secret, which names the address of each.
func TestSharedSecret(t *testing.T) {
	x := Template{}
	x.Namespace, x.Name = "far", "t"
	x.Spec.Template.Spec = Spec{Agent: "fence_ipmilan", SharedSecretName: "creds", SharedParameters: map[string]string{"--ip": "{{.NodeName}}-bmc"}, NodeSecretNames: map[string]string{"c": "bad name"}}
	x.Spec.Template.Spec.NodeParameters = map[string]map[string]string{"--ipport": {"a": "623", "b": "623"}}
	got := Convert([]Template{x}, nil)
	if len(got.Sources) != 3 || len(got.Secrets) != 2 {
		t.Fatalf("%+v", got)
	}
	if s := got.Secrets[0]; s.Name != "belay-shared-creds" || !strings.HasSuffix(s.Command(), "fencing.belay.dev/addresses=a-bmc,b-bmc") || !strings.Contains(s.Plain, "lanplus") {
		t.Errorf("%+v\n%s", s, s.Command())
	}
	if !slices.ContainsFunc(got.Notes, func(n string) bool { return strings.Contains(n, `"bad name" is no name of a Secret`) }) {
		t.Errorf("%q", got.Notes)
	}
	plain := slices.ContainsFunc(got.Steps(), func(s explain.Step) bool {
		return strings.HasSuffix(s.Command, "belay-shared-creds fencing.belay.dev/allow-plain=true")
	})
	if !plain {
		t.Errorf("%+v", got.Steps())
	}
}

// TestPasswordsShareNoSecret: nodes share a Secret only if what it lacks has one value for all of them. Here each has a password of its own, or none, and each step
// names the node whose values it asks for.
func TestPasswordsShareNoSecret(t *testing.T) {
	x, y := Template{}, Template{}
	x.Namespace, x.Name, y.Namespace, y.Name = "far", "x", "far", "y"
	x.Spec.Template.Spec = Spec{Agent: "fence_ipmilan", SharedSecretName: "users", SharedParameters: map[string]string{"--lanplus": ""}, NodeParameters: map[string]map[string]string{
		"--ip": {"a": "192.0.2.1", "b": "192.0.2.2", "c": "192.0.2.3"}, "--password": {"a": "of-a", "b": "of-b"},
	}}
	y.Spec.Template.Spec = Spec{Agent: "fence_ipmilan", SharedSecretName: "users", SharedParameters: map[string]string{"--lanplus": "", "--password": "of-all"}, NodeParameters: map[string]map[string]string{
		"--ip": {"d": "192.0.2.4", "e": "192.0.2.5"},
	}}
	got := Convert([]Template{x, y}, nil)
	secrets := map[string]string{}
	for _, s := range got.Sources {
		secrets[s.Name] = s.Spec.Levels[0].Feeds[0].SecretRef.Name
	}
	if want := map[string]string{"a": "belay-node-a", "b": "belay-node-b", "c": "belay-shared-users", "d": "belay-node-d", "e": "belay-node-e"}; !maps.Equal(secrets, want) {
		t.Errorf("%v, want %v", secrets, want)
	}
	for _, s := range got.Secrets {
		if (len(s.Lacks) > 0) != (s.Node != "") || len(s.Addresses) != 1 {
			t.Errorf("%+v", s)
		}
		want := "Make Secret far/" + s.Name + ". Add the keys password to it, with the values that the template has for node " + s.Node
		if step := s.steps()[0]; s.Node != "" && step.Text != want {
			t.Errorf("%q, want %q", step.Text, want)
		}
	}
}

// TestSecretCommand: the command makes the keys of FAR's Secrets options of an agent, and the later Secret counts.
func TestSecretCommand(t *testing.T) {
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Skip("jq is not installed: apt-get install jq")
	}
	directory := t.TempDir()
	for name, script := range map[string]string{
		"kubectl": "#!/bin/sh\ncase $1 in get) echo \"$SECRETS\";; create) cat;; annotate) echo annotated >&2;; esac\n",
		"jq":      "#!/bin/sh\nexec " + jq + " \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := Secret{Namespace: "far", Name: "belay-node-n", From: []string{"a", "b"}, Addresses: []string{"192.0.2.1"}}
	for secrets, want := range map[string]string{
		`{"kind": "List", "items": [{"data": {"--username": "YQ==", "--action": "b2Zm"}}, {"data": {"--username": "Yg==", "--snmp-priv-passwd": "Yw=="}}, {}]}`: `{"snmp_priv_passwd":"Yw==","username":"Yg=="}`,
		`{"kind": "Secret", "data": {"--password": "YQ=="}}`: `{"password":"YQ=="}`,
	} {
		c := exec.CommandContext(t.Context(), "sh", "-c", s.Command())
		c.Env = append(os.Environ(), "PATH="+directory+":"+os.Getenv("PATH"), "SECRETS="+secrets)
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		var made struct {
			Metadata map[string]string
			Data     map[string]string
		}
		if err := json.Unmarshal(out, &made); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if data, _ := json.Marshal(made.Data); string(data) != want || made.Metadata["name"] != "belay-node-n" || made.Metadata["namespace"] != "far" {
			t.Errorf("%s: want %s", out, want)
		}
	}
}
