package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The files that are about others. What a user downloads is in dist/ itself: a download keeps no folder, and the checksums name files as users have them.
const (
	sumsFile         = "checksums.txt"
	imagesFile       = "digests.txt"
	krewFile         = "belay.yaml"
	provenanceFolder = "provenance"
	signatureFolder  = "signatures"
)

func digest(path string) (string, error) {
	sum := sha256.New()
	if err := copyFile(sum, path); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// list returns the digests of the files of a folder by their paths, without those in the folders that are left out.
func list(root string, without ...string) (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && slices.Contains(without, inside):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		sums[filepath.ToSlash(inside)], err = digest(path)
		return err
	})
	return sums, err
}

// checksums writes a file that sha256sum --check reads. An image is in it by the list of digests: they are those of all its blobs.
func checksums(_ context.Context, o options) error {
	sums, err := list(o.dist)
	if err != nil {
		return err
	}
	return writeFile(o.path(sumsFile), func(out io.Writer) error {
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			if strings.Contains(name, "/blobs/") {
				continue
			}
			if _, err := fmt.Fprintf(out, "%s  %s\n", sums[name], name); err != nil {
				return err
			}
		}
		return nil
	})
}

// readSums returns what checksums wrote.
func readSums(path string) (map[string]string, error) {
	raw, err := os.ReadFile(path) //nolint:gosec // of the release
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		sum, name, found := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !found || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s has a line that is not one: %q", path, line)
		}
		sums[name] = sum
	}
	return sums, nil
}

// checkSums compares the files with the list. The name of a blob in an image is its digest.
func checkSums(dist string) error {
	want, err := readSums(filepath.Join(dist, sumsFile))
	if err != nil {
		return err
	}
	got, err := list(dist, provenanceFolder, signatureFolder)
	if err != nil {
		return err
	}
	delete(got, sumsFile)
	for name, sum := range got {
		if folder, blob := filepath.Split(name); strings.HasSuffix(folder, "/blobs/sha256/") {
			want[name] = blob
		}
		if want[name] != sum {
			err = errors.Join(err, fmt.Errorf("%s is not the file of the release", name))
		}
	}
	for name := range want {
		if _, found := got[name]; !found {
			err = errors.Join(err, fmt.Errorf("%s is missing", name))
		}
	}
	return err
}

// compare requires that two folders have the same files. Signatures are left out: each has a random number in it.
func compare(folders []string) error {
	if len(folders) != 2 {
		return errors.New("compare needs two folders")
	}
	first, err := list(folders[0], signatureFolder)
	if err != nil {
		return err
	}
	second, err := list(folders[1], signatureFolder)
	if err != nil {
		return err
	}
	if len(first) == 0 {
		return fmt.Errorf("%s is empty", folders[0])
	}
	for _, name := range slices.Sorted(maps.Keys(first)) {
		if first[name] != second[name] {
			err = errors.Join(err, fmt.Errorf("%s differs", name))
		}
		delete(second, name)
	}
	for _, name := range slices.Sorted(maps.Keys(second)) {
		err = errors.Join(err, fmt.Errorf("%s is only in %s", name, folders[1]))
	}
	if err == nil {
		fmt.Printf("%d files, equal digests in %s and %s\n", len(first), folders[0], folders[1])
	}
	return err
}
