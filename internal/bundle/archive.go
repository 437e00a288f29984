package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"belay.dev/belay/internal/printable"
)

// Archive collects files until they have the size that it may have, and then writes them. It holds them in memory.
type Archive struct {
	*Redactor

	// Left is how many bytes more it takes.
	Left int64

	files []file
	cut   []string
	notes []string
}

type file struct {
	name    string
	content []byte
}

// Objects adds objects as YAML, each after they were redacted.
type Objects struct {
	archive  *Archive
	name     string
	text     bytes.Buffer
	kept, of int
}

// Objects begins a file of objects.
func (a *Archive) Objects(name string) *Objects { return &Objects{archive: a, name: name} }

// Add redacts an object and adds it, if there is space.
func (f *Objects) Add(o *unstructured.Unstructured) error {
	f.of++
	f.archive.Object(o)
	document, err := printable.YAML(o.Object)
	if err != nil {
		return fmt.Errorf("encode an object: %w", err)
	}
	if int64(f.text.Len()+len(document)) > f.archive.Left {
		return nil
	}
	f.kept++
	f.text.WriteString("---\n")
	f.text.Write(document)
	return nil
}

// Close adds the file to the archive, and returns how many objects it has.
func (f *Objects) Close() int {
	if f.kept < f.of {
		f.archive.cut = append(f.archive.cut, fmt.Sprintf("%s has %d of %d objects", f.name, f.kept, f.of))
	}
	if f.kept > 0 {
		f.archive.add(f.name, f.text.Bytes())
	}
	return f.kept
}

// Text adds a text. What does not fit is cut off at its beginning: logs end with what matters. Half a document is left out.
func (a *Archive) Text(name, text string) {
	name, text = printable.Line(a.Redactor.Text(name)), printable.Text(a.Redactor.Text(text))
	if int64(len(text)) > a.Left && strings.HasSuffix(name, ".yaml") {
		a.cut = append(a.cut, name+" is left out")
		return
	}
	if int64(len(text)) > a.Left {
		a.cut = append(a.cut, fmt.Sprintf("%s has the last %d of %d bytes", name, a.Left, len(text)))
		text = text[int64(len(text))-a.Left:]
		_, text, _ = strings.Cut(text, "\n") // half a line may be half a name
	}
	if text != "" {
		a.add(name, []byte(text))
	}
}

func (a *Archive) add(name string, content []byte) {
	a.files = append(a.files, file{name, content})
	a.Left -= int64(len(content))
}

// Note adds a line to README.txt about what is not in the archive.
func (a *Archive) Note(line string) { a.notes = append(a.notes, printable.Line(a.Redactor.Text(line))) }

// Cut returns what did not fit.
func (a *Archive) Cut() []string { return a.cut }

const readme = `What "kubectl belay bundle" wrote at %s (version %s, %s).

Look through it before you pass it on: what a program wrote into a message or a log cannot be judged by a machine.

Removed, or replaced by %q:
- the contents of Secrets were not read; names of Secrets that objects refer to, also in messages and logs
- values of environment variables; commands, arguments, probes and hooks of containers
- the annotation kubectl.kubernetes.io/last-applied-configuration, and the values of annotations that are not Kubernetes' or belay's
- volumeAttributes, the publish context (attachmentMetadata), parameters of StorageClasses, mount options, options of FlexVolumes
- IP addresses and images of nodes, managed fields' contents
- in messages and logs: what looks like a password, a token, a cookie, a key, a community string or a URL with a password
- everything about namespaces that the user may not read
%s
Files:
`

const renamed = "- names of namespaces, pods, their owners, claims and nodes: replaced by pseudonyms, the same everywhere; labels that are not Kubernetes'\n"

// Write writes the archive. About says what was selected.
func (a *Archive) Write(out io.Writer, now time.Time, version, about string) error {
	names := ""
	if a.Names != nil {
		names = renamed
	}
	var text strings.Builder
	fmt.Fprintf(&text, readme, now.UTC().Format(time.RFC3339), version, printable.Line(about), Removed, names)
	for i := range a.files {
		a.files[i].content = []byte(a.finish(string(a.files[i].content), strings.HasSuffix(a.files[i].name, ".yaml")))
		fmt.Fprintf(&text, "- %s (%d bytes)\n", a.files[i].name, len(a.files[i].content))
	}
	section(&text, "Not in it, because of --max-size", a.cut)
	section(&text, "Not in it", a.notes)
	zipped := gzip.NewWriter(out)
	archive := tar.NewWriter(zipped)
	for _, f := range append([]file{{"README.txt", []byte(a.finish(text.String(), false))}}, a.files...) {
		header := &tar.Header{Name: "belay-bundle/" + f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: now.Truncate(time.Second), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

func section(text *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(text, "\n%s:\n", title)
	for _, line := range lines {
		fmt.Fprintf(text, "- %s\n", line)
	}
}
