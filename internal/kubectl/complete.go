package kubectl

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
)

// completionTimeout is how long a shell waits for names when a user presses Tab. A test makes it longer.
var completionTimeout = 2 * time.Second

// kinds are the names that completion offers, in the order of the help.
var kinds = []string{"pod", "pvc", "pv", "node", "va", "sts", "deploy", "rs", "ds", "job"}

// completeObject completes KIND/NAME and KIND NAME for a command that takes some of the kinds. A cluster that does not answer, or not
// in time, offers no names.
func (p *plugin) completeObject(of ...string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		switch kind, name, found := strings.Cut(typed, "/"); {
		case len(args) == 0 && !found:
			var offered []string
			for _, kind := range of {
				if strings.HasPrefix(kind, typed) {
					offered = append(offered, kind+"/")
				}
			}
			return offered, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		case len(args) == 0:
			return p.names(c.Context(), of, kind, kind+"/", name), cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && !strings.Contains(args[0], "/"):
			return p.names(c.Context(), of, args[0], "", typed), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNode completes a node, with or without its kind.
func (p *plugin) completeNode(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 && !strings.Contains(typed, "/") {
		return p.offered(c.Context(), diagnosis.Nodes, "", "", typed), cobra.ShellCompDirectiveNoFileComp
	}
	return p.completeObject("node")(c, args, typed)
}

// completeFence completes a node that has a NodeFence.
func (p *plugin) completeFence(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return p.offered(c.Context(), diagnosis.Fences, "", "", typed), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeFlag completes a flag that takes the name of an object.
func (p *plugin) completeFlag(resource diagnosis.Resource) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return p.offered(c.Context(), resource, "", "", typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// names lists objects whose names begin with what was typed, each behind the prefix.
func (p *plugin) names(ctx context.Context, of []string, kind, prefix, typed string) []string {
	resource := aliases[strings.ToLower(kind)]
	if !slices.ContainsFunc(of, func(k string) bool { return aliases[k] == resource }) {
		return nil
	}
	namespace := ""
	if slices.Contains(namespaced, resource) {
		var err error
		if namespace, err = p.namespace(); err != nil {
			return nil
		}
	}
	return p.offered(ctx, resource, namespace, prefix, typed)
}

func (p *plugin) offered(ctx context.Context, resource diagnosis.Resource, namespace, prefix, typed string) []string {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	found, err := inspect.Names(ctx, config, resource, namespace)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil
	}
	var offered []string
	for _, name := range found {
		if strings.HasPrefix(name, typed) {
			offered = append(offered, prefix+name)
		}
	}
	return offered
}
