package far

import "testing"

// A template of FAR has the user name of all BMCs in its shared Secret, and the password of each node in plain text (nodeparameters --password). Each password is
// left out, and "belongs into the Secret": but nodes without a Secret of their own get one for all, whose step says "Add the keys password". There is
// one key and there are two passwords: the fencer logs in at the one BMC with the password of the other, which shows it there, and after three refusals, or
// with the account locked, the node cannot be fenced.
// What must hold: nodes share a Secret only if what it lacks has one value for all of them.
func TestHostilePasswordsOfTwoNodesShareNoSecret(t *testing.T) {
	x := Template{}
	x.Namespace, x.Name = "far", "t"
	x.Spec.Template.Spec = Spec{Agent: "fence_ipmilan", SharedSecretName: "users", SharedParameters: map[string]string{"--lanplus": ""}, NodeParameters: map[string]map[string]string{
		"--ip": {"a": "192.0.2.1", "b": "192.0.2.2"}, "--password": {"a": "of-a", "b": "of-b"},
	}}
	got := Convert([]Template{x}, nil)
	if len(got.Sources) != 2 {
		t.Fatalf("%+v", got)
	}
	a, b := got.Sources[0].Spec.Levels[0].Feeds[0].SecretRef, got.Sources[1].Spec.Levels[0].Feeds[0].SecretRef
	if *a == *b {
		t.Errorf("nodes a and b have different passwords and the Secret %s/%s, which lacks %v, for %v", a.Namespace, a.Name, got.Secrets[0].Lacks, got.Secrets[0].Addresses)
	}
}
