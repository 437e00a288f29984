package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// cosign is what `make bin/cosign` builds.
func cosign(ctx context.Context, args ...string) error {
	program := os.Getenv("COSIGN")
	if program == "" {
		program = "bin/cosign"
	}
	return command(ctx, []string{"COSIGN_PASSWORD=" + os.Getenv("COSIGN_PASSWORD")}, program, args...)
}

// signing are the arguments of every signature. With a key nothing is sent to a transparency log; keyless needs one.
func (o options) signing() []string {
	if o.key == "" {
		return []string{"--yes"}
	}
	return []string{"--yes", "--key", o.key, "--use-signing-config=false", "--tlog-upload=false"}
}

// checking are the arguments of every verification.
func (o options) checking() ([]string, error) {
	switch {
	case o.key != "":
		return []string{"--key", o.key, "--insecure-ignore-tlog"}, nil
	case o.identity == "" || o.issuer == "":
		return nil, errors.New("verify needs -key, or -identity and -issuer")
	default:
		return []string{"--certificate-identity", o.identity, "--certificate-oidc-issuer", o.issuer}, nil
	}
}

// sign signs the checksums, and each statement of provenance.
func sign(ctx context.Context, o options) error {
	if err := checkSums(o.dist); err != nil {
		return err
	}
	if err := o.refuseDirty(); err != nil {
		return err
	}
	if err := os.RemoveAll(o.path(signatureFolder)); err != nil {
		return err
	}
	if err := os.MkdirAll(o.path(signatureFolder), 0o755); err != nil { //nolint:gosec // for everyone
		return err
	}
	args := append([]string{"sign-blob", "--bundle", o.bundle(sumsFile)}, o.signing()...)
	if err := cosign(ctx, append(args, o.path(sumsFile))...); err != nil {
		return err
	}
	statements, err := filepath.Glob(o.path(provenanceFolder, "*"))
	if err != nil {
		return err
	}
	for _, statement := range statements {
		args := append([]string{"attest-blob", "--statement", statement, "--bundle", o.bundle(filepath.Base(statement))}, o.signing()...)
		if err := cosign(ctx, args...); err != nil {
			return err
		}
	}
	fmt.Printf("%d signatures\n", len(statements)+1)
	return nil
}

// bundle is the file of a signature.
func (o options) bundle(name string) string { return o.path(signatureFolder, name+".sigstore.json") }

// verify checks the signature of the checksums, every file against them, and the signed provenance of every file.
func verify(ctx context.Context, o options) error {
	checking, err := o.checking()
	if err != nil {
		return err
	}
	args := append([]string{"verify-blob", "--bundle", o.bundle(sumsFile)}, checking...)
	if err := cosign(ctx, append(args, o.path(sumsFile))...); err != nil {
		return err
	}
	if err := checkSums(o.dist); err != nil {
		return err
	}
	sums, err := readSums(o.path(sumsFile))
	if err != nil {
		return err
	}
	sums[sumsFile] = ""
	for _, file := range slices.Sorted(maps.Keys(sums)) {
		args := append([]string{"verify-blob-attestation", "--type", predicateType, "--bundle", o.bundle(statementOf(file))}, checking...)
		if err := cosign(ctx, append(args, o.path(file))...); err != nil {
			return err
		}
	}
	fmt.Printf("%d files verified\n", len(sums))
	return nil
}

// push pushes the images as they are in the release, and signs each digest.
func push(ctx context.Context, o options) error {
	if o.to == "" || o.version == "" {
		return errors.New("push needs -to and -version")
	}
	if err := checkSums(o.dist); err != nil {
		return err
	}
	if err := o.refuseDirty(); err != nil {
		return err
	}
	pushed, err := readImages(o.dist)
	if err != nil {
		return err
	}
	for _, image := range slices.Sorted(maps.Keys(pushed)) {
		reference, err := o.pushImage(ctx, image, pushed[image])
		if err != nil {
			return fmt.Errorf("push %s: %w", image, err)
		}
		args := append([]string{"sign", "--recursive"}, o.signing()...)
		if o.insecure {
			args = append(args, "--allow-http-registry")
		}
		if err := cosign(ctx, append(args, reference)...); err != nil {
			return err
		}
		fmt.Println(reference)
	}
	return nil
}

// pushImage pushes the index of a layout, and returns its name with the digest.
func (o options) pushImage(ctx context.Context, image, digest string) (string, error) {
	path, err := layout.FromPath(o.path("images", image))
	if err != nil {
		return "", err
	}
	all, err := path.ImageIndex()
	if err != nil {
		return "", err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return "", err
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest.String() != digest {
		return "", fmt.Errorf("the layout has not the image %s alone", digest)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return "", err
	}
	var naming []name.Option
	if o.insecure {
		naming = append(naming, name.Insecure)
	}
	tag, err := name.NewTag(strings.TrimSuffix(o.to, "/")+"/"+image+":"+string(o.version), naming...)
	if err != nil {
		return "", err
	}
	err = remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	return tag.Context().Digest(digest).String(), err
}
