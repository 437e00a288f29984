package cluster

import (
	"net"
	"os"
	"testing"
)

// TestLabsShareNoPort: two labs with caches of their own know nothing of each other.
func TestLabsShareNoPort(t *testing.T) {
	var one, other portChooser
	defer one.release()
	defer other.release()
	taken := map[int]bool{}
	for range 300 {
		taken[one.choose()] = true
	}
	for range 500 {
		if port := other.choose(); taken[port] {
			t.Fatalf("both labs have port %d", port)
		}
	}
	if one.err != nil || other.err != nil {
		t.Error(one.err, other.err)
	}
}

// TestPortWithServerIsNotChosen: a program that is no lab's may listen in the range.
func TestPortWithServerIsNotChosen(t *testing.T) {
	var c portChooser
	port := c.choose()
	server, err := net.Listen("tcp", address(port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	c.release()
	if claim, err := claimPort(port); err == nil {
		_ = claim.Close()
		t.Errorf("claimed port %d, on which a server listens", port)
	}
}

// TestListens: the kernel's list of sockets says whether a kubelet listens.
func TestListens(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", kubeletAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	for _, want := range []bool{true, false} {
		sockets, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		if listens(sockets, port) != want {
			t.Errorf("port %d listens: %t", port, !want)
		}
		_ = listener.Close()
	}
}
