// Package install holds the tests that install belay in a lab as its users do: images from `make images`, the Helm chart, kubectl.
package install
