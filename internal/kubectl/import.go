package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/far"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

const importLong = `Turn what another remediator knows about power switches into FenceSources of belay. By default this only shows what would be
written, and asks the API server whether it would accept it.`

const importFARLong = `Turn the FenceAgentsRemediationTemplates of fence-agents-remediation (FAR, medik8s) into FenceSources, one for each node that they
name, or for all nodes. By default this only shows them, what is different from what FAR does, and what you have to do yourself.

No Secret is read. FAR's have names of parameters as keys, and do not say where they may be sent: the steps have a command for each
that makes the Secret of the FenceSource from them, and names the addresses of the power switches in it.

The output is YAML, with all else as comments: you may keep it in a file, change it and apply it. With --confirm the FenceSources are
created. One that exists is never changed. You need the permission to create fencesources, and to get the Secrets that they name.`

const importFARExample = `  # What would the templates of this cluster become?
  kubectl belay import far

  # Those of a file, for another cluster
  kubectl belay import far -f templates.yaml

  # Create the FenceSources
  kubectl belay import far --confirm`

// importOptions are the flags of the command.
type importOptions struct {
	files   []string
	confirm bool
	format  output
}

func (p *plugin) importCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "import", Short: "Turn another remediator's power switches into FenceSources (dry run by default)", Long: importLong, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var o importOptions
	ofFAR := &cobra.Command{
		Use: "far", Short: "Turn FenceAgentsRemediationTemplates into FenceSources (dry run by default)", Long: importFARLong, Example: importFARExample, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.importFAR(c.Context(), &o) },
	}
	ofFAR.Flags().StringSliceVarP(&o.files, "filename", "f", nil, "files with templates, in place of those in the cluster; - is standard input")
	o.format.addTo(ofFAR, "YAML with comments")
	addConfirm(ofFAR, &o.confirm)
	c.AddCommand(ofFAR)
	return c
}

// importFAR shows what the templates become, and creates that if it is confirmed.
func (p *plugin) importFAR(ctx context.Context, o *importOptions) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	answered := p.waitsForServer()
	templates, err := p.templates(ctx, reader, o.files)
	nodes, unread := reader.NodeNames(ctx)
	if err != nil || ctx.Err() != nil {
		answered()
		return interrupted(ctx, errors.Join(err, ctx.Err()))
	}
	made := far.Convert(templates, nodes)
	if unread != nil && (made.AllNodes || !apierrors.IsForbidden(unread)) {
		answered()
		return fmt.Errorf("read which nodes there are: %w", unread)
	}
	for i := range made.Sources {
		if name := made.Sources[i].Name; unread == nil && !slices.Contains(nodes, name) {
			made.Notes = append(made.Notes, "node "+name+" is not in this cluster")
		}
	}
	plan := carryOut(ctx, reader, &made, !o.confirm)
	answered()
	if ctx.Err() != nil {
		return interrupted(ctx, ctx.Err())
	}
	p.commands(plan.Next)
	if err := o.format.print(p.Out, plan, func() error {
		text, err := importText(p.style, &plan, len(templates))
		_, wrong := io.WriteString(p.Out, text)
		return errors.Join(err, wrong)
	}); err != nil {
		return err
	}
	return p.imported(&plan, o)
}

// imported says what was done, and returns the error with the exit status.
func (p *plugin) imported(plan *far.ImportPlan, o *importOptions) error {
	refused := plan.Failed()
	switch {
	case o.confirm && len(plan.Sources) > refused:
		_, _ = fmt.Fprintf(p.ErrOut, "%d of %d FenceSources are in the cluster. To see what each lacks: %s\n", len(plan.Sources)-refused, len(plan.Sources), p.command("kubectl get fencesources"))
	case o.confirm || refused > 0 || len(plan.Sources) == 0:
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed.")
	default:
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed. To do it, add --confirm.")
	}
	if refused > 0 || len(plan.Sources) == 0 {
		return found{StatusBlocked}
	}
	return nil
}

// carryOut creates the FenceSources, or only asks the API server whether it would accept them.
func carryOut(ctx context.Context, reader *inspect.Reader, made *far.Import, dryRun bool) far.ImportPlan {
	plan := far.ImportPlan{TypeMeta: metav1.TypeMeta{APIVersion: diagnosis.APIVersion, Kind: "ImportPlan"}, Notes: made.Notes, Next: made.Steps()}
	for i := range made.Sources {
		source := &made.Sources[i]
		planned := far.PlannedSource{Node: source.Name, Template: made.From[i], Manifest: far.Manifest(source)}
		result, err := reader.CreateSource(ctx, source, dryRun)
		planned.Result = result
		if err != nil {
			planned.Message = err.Error()
		}
		plan.Sources = append(plan.Sources, planned)
	}
	return plan
}

// templates reads the templates, from files or from the cluster.
func (p *plugin) templates(ctx context.Context, reader *inspect.Reader, files []string) (all []far.Template, err error) {
	if len(files) == 0 {
		return reader.FARTemplates(ctx, *p.flags.Namespace)
	}
	namespace, err := p.namespace()
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := p.file(file)
		if err != nil {
			return nil, err
		}
		found, err := templatesOf(text)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		for i := range found {
			if found[i].Namespace == "" {
				found[i].Namespace = namespace
			}
		}
		all = append(all, found...)
	}
	return all, nil
}

// largestFile is how much is read of a file with templates.
const largestFile = 16 << 20

func (p *plugin) file(name string) ([]byte, error) {
	from := io.NopCloser(p.In)
	if name != "-" {
		opened, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		from = opened
	}
	defer func() { _ = from.Close() }()
	text, err := io.ReadAll(io.LimitReader(from, largestFile+1))
	if err == nil && len(text) > largestFile {
		err = fmt.Errorf("%s is larger than %d MiB", name, largestFile>>20)
	}
	return text, err
}

// templatesOf reads documents in YAML or JSON, and lists of them. Other kinds are left out.
func templatesOf(text []byte) (found []far.Template, err error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var document struct {
			far.Template `json:",inline"`

			Items []far.Template `json:"items"`
		}
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		for _, t := range append(document.Items, document.Template) {
			if t.Kind == far.Kind && strings.HasPrefix(t.APIVersion, far.Group+"/") {
				found = append(found, t)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("it has no " + far.Kind + " of " + far.Group)
	}
	return found, nil
}

// importText is a plan as YAML, with comments.
func importText(s style, plan *far.ImportPlan, templates int) (string, error) {
	if s.width > 0 {
		s.width = max(s.width-len("# "), 40)
	}
	out := &page{style: s, wide: true}
	verdict, title := diagnosis.Clear, "READY"
	if plan.Failed() > 0 || len(plan.Sources) == 0 {
		verdict, title = diagnosis.Blocked, "REFUSED"
	}
	fmt.Fprintf(&out.text, "%s: %s\n", out.verdict(verdict, title), out.wrap(fmt.Sprintf("%d FenceSources of %d FenceAgentsRemediationTemplates", len(plan.Sources), templates), 0))
	for i, note := range plan.Notes {
		out.line(first(i, "Differs"), "%s", note)
	}
	out.steps(plan.Next)
	var text strings.Builder
	for line := range strings.Lines(out.text.String()) {
		text.WriteString("# " + line)
	}
	for i := range plan.Sources {
		source := &plan.Sources[i]
		manifest, err := printable.YAML(source.Manifest)
		if err != nil {
			return "", fmt.Errorf("encode FenceSource %s: %w", source.Node, err)
		}
		result := string(source.Result)
		if source.Message != "" {
			result += ": " + source.Message
		}
		fmt.Fprintf(&text, "---\n# %s, from template %s: %s\n%s", source.Node, source.Template, printable.Line(result), manifest)
	}
	return text.String(), nil
}
