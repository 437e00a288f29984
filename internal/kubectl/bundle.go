package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/bundle"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/usage"
)

const bundleLong = `Write an archive for a report: the objects that volumes depend on as YAML, the logs of belay's and the drivers' controller pods,
and the outputs of check, stuck, map and explain.

Contents and names of Secrets, environment variables, arguments of containers, volume attributes and publish contexts are left out,
and what looks like a password in messages and logs. Namespaces that you may not read do not appear. README.txt in the archive lists
what is in it and what was removed. Look through it before you pass it on.`

const bundleExample = `  # The whole cluster
  kubectl belay bundle

  # One application, with names replaced, to standard output
  kubectl belay bundle -n prod -l app=db --redact-names -f - > report.tar.gz

  # What concerns one node, without logs
  kubectl belay bundle --node node-1 --logs=false`

// bundleOptions are the flags of the command.
type bundleOptions struct {
	file     string
	all      bool
	selector string
	node     string
	logs     bool
	tail     int64
	size     string
	redact   bool
	replace  bool

	bytes   int64
	version string
}

// The limits of --max-size: less has no space for the list of what was cut.
const smallestBundle = 64 << 10

func (o *bundleOptions) validate() error {
	size, err := resource.ParseQuantity(o.size)
	if err != nil {
		return usage.Errorf("--max-size %q is no quantity such as 50Mi: %v", o.size, err)
	}
	if o.bytes = size.Value(); o.bytes < smallestBundle {
		return usage.Errorf("--max-size is %s, but must be at least 64Ki", o.size)
	}
	if o.tail < 1 {
		return usage.Errorf("--tail is %d, but must be at least 1; --logs=false leaves logs out", o.tail)
	}
	if _, err := labels.Parse(o.selector); err != nil {
		return usage.Errorf("--selector %q: %v", o.selector, err)
	}
	return nil
}

// knows reports whether there is the node, or something is attached to it, or that could not be read.
func knows(s *diagnosis.Snapshot, node string) bool {
	return !slices.Contains(s.Whole, diagnosis.Nodes) || slices.ContainsFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == node }) ||
		slices.ContainsFunc(s.Attachments, func(va *storagev1.VolumeAttachment) bool { return va.Spec.NodeName == node })
}

func (p *plugin) bundleCommand(version string) *cobra.Command {
	o := bundleOptions{version: version}
	c := &cobra.Command{
		Use: "bundle", Short: "Write an archive for a report, without secrets", Long: bundleLong, Example: bundleExample, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if err := p.checkFile(&o); err != nil {
				return err
			}
			if o.all && *p.flags.Namespace != "" {
				return usage.Errorf("use either --all-namespaces or --namespace")
			}
			return p.bundle(c.Context(), &o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.file, "file", "f", "", "file to write, or - for standard output (default belay-<context>-<time>.tar.gz)")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "all namespaces that you may read: the default without --namespace")
	f.StringVarP(&o.selector, "selector", "l", "", "only pods with these labels, and what they use")
	f.StringVar(&o.node, "node", "", "only pods on this node, and what is attached to it")
	f.BoolVar(&o.logs, "logs", true, "include logs of belay's and the drivers' controller pods, and with --node of belay-node")
	f.Int64Var(&o.tail, "tail", 2000, "lines of each log")
	f.StringVar(&o.size, "max-size", "50Mi", "how much the files may have together, before they are compressed; README.txt lists what was cut")
	f.BoolVar(&o.replace, "overwrite", false, "replace the file if it exists")
	_ = c.RegisterFlagCompletionFunc("node", p.completeFlag(diagnosis.Nodes)) // the flag was just added
	f.BoolVar(&o.redact, "redact-names", false, "replace names of namespaces, pods, claims and nodes by pseudonyms")
	return c
}

// checkFile refuses what the archive cannot, or should not, be written to.
func (p *plugin) checkFile(o *bundleOptions) error {
	if o.file == "-" {
		if _, ok := terminal(p.raw); ok {
			return usage.Errorf("the archive is not text: send standard output to a file or a program, not to the terminal")
		}
		return nil
	}
	folder := filepath.Dir(o.file)
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return usage.Errorf("the folder %s of --file does not exist: create it, or name another", folder)
	}
	switch info, err := os.Stat(o.file); {
	case info == nil: // there is none, or the write says why not
	case err == nil && info.IsDir():
		return usage.Errorf("--file %s is a folder: name a file in it, such as %s", o.file, filepath.Join(o.file, "belay.tar.gz"))
	case err == nil && !o.replace:
		return usage.Errorf("--file %s exists: name another one, or replace it with --overwrite", o.file)
	}
	return nil
}

func (p *plugin) bundle(ctx context.Context, o *bundleOptions) error {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	s, namespace, err := p.bundleSnapshot(ctx)
	if err != nil {
		return err
	}
	if err := p.missingNamespace(ctx, *p.flags.Namespace); err != nil {
		return err
	}
	if len(s.Whole)+len(s.Namespaces) == 0 && !s.AllNamespaces {
		p.unread(s.Unread, "")
		return errors.New("nothing could be read, so there is nothing to report")
	}
	if o.node != "" && !knows(s, o.node) {
		return fmt.Errorf("node %s does not exist, and has no VolumeAttachments", o.node)
	}
	g := &gathering{
		plugin: p, bundleOptions: o, clients: clients, objects: objects, snapshot: s, namespace: namespace, kept: map[diagnosis.Ref]bool{},
		archive: &bundle.Archive{Redactor: &bundle.Redactor{MayName: s.MayName}, Left: o.bytes - smallestBundle/2},
	}
	if !s.AllNamespaces {
		g.archive.Hide = s.Hide()
	}
	if o.redact {
		g.archive.Names = g.pseudonyms(ctx)
	}
	if err := g.gather(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return interrupted(ctx, ctx.Err())
	}
	return p.writeBundle(ctx, o, g.archive, g.about())
}

// bundleSnapshot reads the namespace of the flag, else all, else the one of the context.
func (p *plugin) bundleSnapshot(ctx context.Context) (*diagnosis.Snapshot, string, error) {
	namespace := *p.flags.Namespace
	if err := checkNamespace(namespace); err != nil {
		return nil, "", err
	}
	s, err := p.clusterWith(ctx, namespace, true)
	if err != nil || namespace != "" || s.AllNamespaces {
		return s, namespace, err
	}
	if namespace, err = p.namespace(); err != nil {
		return nil, "", err
	}
	_, _ = fmt.Fprintf(p.ErrOut, "You may not read the pods of all namespaces: the archive has namespace %s.\n", namespace)
	s, err = p.clusterWith(ctx, namespace, true)
	return s, namespace, err
}

var notInFileName = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// bundleName is the default name of the file.
func (p *plugin) bundleName(o *bundleOptions, now time.Time) string {
	name := "cluster"
	if raw, err := p.flags.ToRawKubeConfigLoader().RawConfig(); err == nil && !o.redact {
		name = raw.CurrentContext
		if *p.flags.Context != "" {
			name = *p.flags.Context
		}
	}
	return fmt.Sprintf("belay-%s-%s.tar.gz", notInFileName.ReplaceAllString(name, "-"), now.UTC().Format("20060102-150405"))
}

// writeBundle writes the archive to standard output or to a file, which appears when it is complete.
func (p *plugin) writeBundle(ctx context.Context, o *bundleOptions, archive *bundle.Archive, about string) error {
	now := time.Now()
	if o.file == "-" {
		return diskFull("standard output", archive.Write(p.raw, now, o.version, about))
	}
	name := o.file
	if name == "" {
		name = p.bundleName(o, now)
	}
	write := func(out io.Writer) error { return archive.Write(&interruptible{ctx, out}, now, o.version, about) }
	if err := diskFull(name, writeWhole(name, write)); err != nil {
		return err
	}
	for _, line := range archive.Cut() {
		_, _ = fmt.Fprintln(p.ErrOut, "Cut to --max-size:", line)
	}
	_, _ = fmt.Fprintf(p.ErrOut, "Wrote %s. Look through it before you pass it on: README.txt says what was removed.\n", name)
	return nil
}

// interruptible fails once the context has ended.
type interruptible struct {
	ctx context.Context //nolint:containedctx // it lives as long as one write of a file
	io.Writer
}

func (w *interruptible) Write(data []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	return w.Writer.Write(data)
}

// writeWhole writes a file under another name first, so that there is never half of it.
func writeWhole(name string, write func(io.Writer) error) error {
	file, err := os.CreateTemp(filepath.Dir(name), ".belay-bundle-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) //nolint:errcheck // it is gone after the rename
	if err := errors.Join(write(file), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// diskFull says in plain words what a write failed for.
func diskFull(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("write %s: the disk is full; choose another with --file, or less with --max-size or --logs=false", name)
	}
	return fmt.Errorf("write %s: %w", name, err)
}
