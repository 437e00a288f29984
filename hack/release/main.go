// Command release makes all files of a release, compares two of them, and signs, verifies and pushes one. `make release-dry-run` calls it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
)

const module = "belay.dev/belay"

// options are the flags. The program runs in the root of the repository.
type options struct {
	dist, base, builder string
	revision            string
	version             version
	created             time.Time
	rootfs              string
	key, to             string
	insecure            bool
	allowDirty, dirty   bool // dirty: the files are not those of the commit
	identity, issuer    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

var commands = map[string]func(ctx context.Context, o options, args []string) error{
	"build":   func(ctx context.Context, o options, _ []string) error { return buildAll(ctx, o) },
	"compare": func(_ context.Context, _ options, args []string) error { return compare(args) },
	"sign":    func(ctx context.Context, o options, _ []string) error { return sign(ctx, o) },
	"verify":  func(ctx context.Context, o options, _ []string) error { return verify(ctx, o) },
	"push":    func(ctx context.Context, o options, _ []string) error { return push(ctx, o) },
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: release build|compare|sign|verify|push [flags]")
	}
	var o options
	var text string
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.dist, "dist", "dist", "folder of the release")
	flags.StringVar(&text, "version", "", "version, a tag such as v0.1.0, or what git describe prints")
	flags.StringVar(&o.revision, "revision", "", "commit")
	flags.StringVar(&o.base, "base", "", "address of the folder from which the release is downloaded, for krew's manifest")
	flags.StringVar(&o.builder, "builder", "https://"+module+"/builders/local", "builder.id of the provenance: the workflow, in CI")
	flags.StringVar(&o.rootfs, "fencer-rootfs", "", "folder with ARCH.tar (hack/fencer-rootfs); without it the image belay-controller-fencer is left out")
	flags.StringVar(&o.key, "key", "", "key of cosign: the private one for sign and push, the public one for verify; without it, keyless")
	flags.StringVar(&o.identity, "identity", "", "verify, keyless: the identity of the certificate")
	flags.StringVar(&o.issuer, "issuer", "", "verify, keyless: the OIDC issuer of the certificate")
	flags.StringVar(&o.to, "to", "", "push: repository, such as registry.example.com/belay")
	flags.BoolVar(&o.insecure, "insecure", false, "push: over plain HTTP")
	flags.BoolVar(&o.allowDirty, "allow-dirty", false, "build, sign and push a rehearsal with uncommitted changes; its provenance names no commit")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.version = version(text)
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		o.created = time.Unix(seconds, 0).UTC()
	}
	o.base = cmp.Or(o.base, "https://releases.example/belay/"+o.version.tag())
	return commands[args[0]](ctx, o, flags.Args())
}

// version is a tag, or what git describe prints.
type version string

// between is the end of what git describe prints between two tags, or with uncommitted changes. As a version of its own, v1.2.3-5-g0123456 would be
// a candidate of 1.2.3, which it follows.
var between = regexp.MustCompile(`(-[0-9]+-g[0-9a-f]{4,}|-dirty)$`)

// dirty says whether git describe found uncommitted changes.
func (v version) dirty() bool { return strings.HasSuffix(string(v), "-dirty") }

// semantic is the version as charts and packages need it: of a build without a tag, one that sorts before every release.
func (v version) semantic() string {
	if between.MatchString(string(v)) {
		return "0.0.0-g" + string(v)
	}
	if parsed, err := semver.StrictNewVersion(strings.TrimPrefix(string(v), "v")); err == nil && strings.HasPrefix(string(v), "v") {
		return parsed.String()
	}
	return "0.0.0-g" + string(v)
}

// tag is the same as krew needs it.
func (v version) tag() string { return "v" + v.semantic() }

// buildAll makes everything but the signatures. A folder that is there is replaced.
func buildAll(ctx context.Context, o options) error {
	if o.version == "" || o.revision == "" || o.created.IsZero() {
		return errors.New("build needs -version, -revision and SOURCE_DATE_EPOCH")
	}
	var err error
	if o.dirty, err = o.uncommitted(ctx, "."); err != nil {
		return err
	}
	for _, old := range []string{o.dist, o.work()} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
		if err := os.MkdirAll(old, 0o755); err != nil { //nolint:gosec // for everyone
			return err
		}
	}
	for _, step := range []struct {
		name string
		do   func(context.Context, options) error
	}{
		{"programs", compile},
		{"man pages and completions", manual},
		{"licences", licences},
		{"SBOMs", sboms},
		{"archives", archives},
		{"packages", packages},
		{"images", images},
		{"chart", chart}, // with the digests of the images
		{"krew manifest", krew},
		{"checksums", checksums},
		{"provenance", provenance},
	} {
		start := time.Now()
		if err := step.do(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%-26s %6.1f s\n", step.name, time.Since(start).Seconds())
	}
	return os.RemoveAll(o.work())
}

// work is a folder beside the release for what is packed.
func (o options) work() string { return filepath.Clean(o.dist) + ".work" }

func (o options) path(elements ...string) string {
	return filepath.Join(append([]string{o.dist}, elements...)...)
}

// command runs a program, with what it prints on standard error.
func command(ctx context.Context, environment []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}
