package kubectl

import (
	"regexp"
	"strings"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
)

// connection are the flags with which the user chose the cluster and the identity, as words for a shell. A token is left out: it is a
// secret.
func (p *plugin) connection() string {
	var words []string
	add := func(flag string, value *string) {
		if value != nil && *value != "" {
			words = append(words, "--"+flag+"="+explain.ShellWord(*value))
		}
	}
	f := p.flags
	add("kubeconfig", f.KubeConfig)
	add("context", f.Context)
	add("cluster", f.ClusterName)
	add("user", f.AuthInfoName)
	add("server", f.APIServer)
	add("tls-server-name", f.TLSServerName)
	add("certificate-authority", f.CAFile)
	add("client-certificate", f.CertFile)
	add("client-key", f.KeyFile)
	add("as", f.Impersonate)
	add("as-uid", f.ImpersonateUID)
	if f.ImpersonateGroup != nil {
		for i := range *f.ImpersonateGroup {
			add("as-group", &(*f.ImpersonateGroup)[i])
		}
	}
	if f.Insecure != nil && *f.Insecure {
		words = append(words, "--insecure-skip-tls-verify")
	}
	return strings.Join(words, " ")
}

// called matches where a command of several begins: kubectl, after which its flags may stand, or a command of this plugin.
var called = regexp.MustCompile(`(^|; |&& |\| )kubectl( belay [a-z-]+)? `)

// command makes a command act on the cluster that the user asked about.
func (p *plugin) command(text string) string {
	flags := p.connection()
	if flags == "" {
		return text
	}
	return strings.TrimSuffix(called.ReplaceAllStringFunc(text+" ", func(begin string) string { return begin + flags + " " }), " ")
}

func (p *plugin) commands(steps []explain.Step) {
	for i := range steps {
		steps[i].Command = p.command(steps[i].Command)
	}
}

// address makes the commands of findings act on the cluster that the user asked about.
func (p *plugin) address(findings []diagnosis.Finding) {
	for i := range findings {
		p.commands(findings[i].Next)
	}
}
