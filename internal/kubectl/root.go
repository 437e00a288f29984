package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/heap"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// The exit statuses of commands that diagnose. Wrong usage is an error.
const (
	StatusClear   = 0
	StatusError   = 1
	StatusBlocked = 2
	StatusUnsafe  = 3
)

// found is the error of a command that worked and found something: the exit status says what.
type found struct{ status int }

func (f found) Error() string { return fmt.Sprintf("exit status %d", f.status) }

// Status is the exit status for an error of a command.
func Status(err error) int {
	var f found
	switch {
	case err == nil:
		return StatusClear
	case errors.As(err, &f):
		return f.status
	}
	return StatusError
}

// Printed reports whether the command has printed why it ends: the error has only the exit status.
func Printed(err error) bool { return errors.As(err, new(found)) }

// statusOf is the error for a verdict, nil if nothing is blocked.
func statusOf(v diagnosis.Verdict) error {
	switch v {
	case diagnosis.Blocked:
		return found{StatusBlocked}
	case diagnosis.Unsafe:
		return found{StatusUnsafe}
	case diagnosis.Unknown:
		return found{StatusError}
	case diagnosis.Clear, diagnosis.NotVolume, diagnosis.InProgress:
	}
	return nil
}

// plugin is what all commands share.
type plugin struct {
	// What is printed goes through a printable.Writer.
	genericiooptions.IOStreams
	// raw is standard output for what is not text.
	raw   io.Writer
	flags *genericclioptions.ConfigFlags
	style style
	// redraws is set if standard error is a terminal.
	redraws bool
}

const rootLong = `belay explains why pods wait for their volumes: who holds a volume, what each component did last, what happens by
itself and when, and what you can safely do.

It works on any cluster, with upstream's controllers or belay's, and only reads, unless a command says otherwise. It
shows what your permissions allow, and says which permission would show more.

Exit status:
  0  nothing is blocked
  1  an error, wrong usage, or too little could be read for an answer
  2  something is blocked
  3  something is blocked, and to end that by force now may corrupt data`

// NewCommand returns the command "kubectl belay".
func NewCommand(streams genericiooptions.IOStreams, version string) *cobra.Command {
	_, redraws := terminal(streams.ErrOut)
	p := &plugin{raw: streams.Out, flags: genericclioptions.NewConfigFlags(true), style: styleOf(streams.Out), redraws: redraws}
	p.IOStreams = genericiooptions.IOStreams{In: streams.In, Out: printable.New(streams.Out), ErrOut: printable.New(streams.ErrOut)}
	root := &cobra.Command{
		Use: "kubectl-belay", Short: "Explain why pods wait for their volumes", Long: rootLong, Version: usage.Version(version),
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl belay"},
		SilenceUsage: true, SilenceErrors: true, Args: usage.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return checkNamespace(*p.flags.Namespace) },
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(p.Out)
	root.SetErr(p.ErrOut)
	root.SetFlagErrorFunc(usage.FlagError)
	p.flags.AddFlags(root.PersistentFlags())
	root.AddCommand(p.explainCommand(), p.forceCommand(), p.goneCommand(), p.waitCommand())
	root.AddCommand(p.evidenceCommand(), p.fenceCommand(), p.unfenceCommand(), p.importCommand())
	root.AddCommand(p.stuckCommand(), p.orphansCommand(), p.mapCommand(), p.timelineCommand(), p.runbookCommand())
	root.AddCommand(p.checkCommand(), p.bundleCommand(version), p.versionCommand(version))
	root.SetHelpCommand(helpCommand(root))
	// The flag was just added: it cannot be missing or have a completion.
	_ = root.RegisterFlagCompletionFunc("namespace", p.completeFlag(diagnosis.Namespaces))
	return root
}

// reader connects to the cluster.
func (p *plugin) reader() (*inspect.Reader, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	heap.Tune(garbage, os.Getenv("GOGC"))
	return inspect.New(config)
}

// namespace is the namespace of the flag, else of the context.
func (p *plugin) namespace() (string, error) {
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("read the namespace of the context: %w", err)
	}
	return namespace, checkNamespace(namespace)
}

// style is how the output is printed.
type style struct {
	color bool
	width int // 0: not wrapped
	// blocks is set where bars may have block characters.
	blocks bool
}

// terminal returns the file of an output that is a terminal.
func terminal(out io.Writer) (file *os.File, ok bool) {
	file, ok = out.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// styleOf is the style for an output: colors and lines that fit on a terminal, plain text elsewhere (https://no-color.org).
func styleOf(out io.Writer) style {
	file, ok := terminal(out)
	if !ok {
		return style{}
	}
	s := style{color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", blocks: utf8Locale()}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 { // a serial console has no size
		s.width = max(width, 40)
	}
	return s
}

func (s style) paint(color printable.Style, text string) string {
	if !s.color {
		return text
	}
	return color.String() + text + printable.Plain.String()
}

func (s style) verdict(v diagnosis.Verdict, text string) string {
	switch v {
	case diagnosis.Unsafe:
		return s.paint(printable.Red, text)
	case diagnosis.Blocked, diagnosis.Unknown:
		return s.paint(printable.Yellow, text)
	case diagnosis.Clear, diagnosis.NotVolume, diagnosis.InProgress:
	}
	return s.paint(printable.Green, text)
}

// wrap breaks a text into lines that fit, each after the first with the indent. The text has no other lines.
func (s style) wrap(text string, indent int) string {
	text = printable.Line(text)
	if s.width == 0 {
		return text
	}
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case indent+len(line)+1+len(word) > s.width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return strings.Join(append(lines, line), "\n"+strings.Repeat(" ", indent))
}

// interrupted makes an error of a canceled context readable.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}
