// Writes each case of the scheduler's own table of allocations as a line of JSON, with what the allocator answers. It is built
// inside of a copy of k8s.io/dynamic-resource-allocation, in structured/internal/experimental.
package experimental

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
	"k8s.io/dynamic-resource-allocation/structured/internal/allocatortesting"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

type written struct {
	Name    string                       `json:"name"`
	Node    *v1.Node                     `json:"node"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	// Claims that have what is allocated.
	Holders []*resourceapi.ResourceClaim `json:"holders"`
	// yes, no or error.
	ByDefault string `json:"byDefault"`
	WithAlpha string `json:"withAlpha"`
	Error     string `json:"error"`
}

// recorder answers as the case expects, with the features of the case.
type recorder struct {
	internal.Allocator
	write func(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim)
}

func (r recorder) Allocate(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	if ctx.Err() == nil {
		r.write(ctx, node, claims)
	}
	return r.Allocator.Allocate(ctx, node, claims)
}

func (r recorder) GetStats() internal.Stats {
	return r.Allocator.(internal.AllocatorExtended).GetStats()
}

func TestWrittenTable(t *testing.T) {
	file, err := os.Create(os.Getenv("NETCLAIM_ALLOCATOR_TABLE"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := json.NewEncoder(file)
	newAllocator := func(ctx context.Context, features Features, state internal.AllocatedState, classes DeviceClassLister, slices []*resourceapi.ResourceSlice, cache *cel.Cache) (internal.Allocator, error) {
		allocator, err := NewAllocator(ctx, features, state, classes, slices, cache)
		if err != nil {
			return nil, err
		}
		write := func(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim) {
			line := written{Name: nameOf(ctx), Node: node, Claims: claims, Slices: slices, Holders: holders(state)}
			line.Classes, _ = classes.List()
			line.ByDefault, line.Error = answer(ctx, byDefault, state, classes, slices, node, claims)
			line.WithAlpha, _ = answer(ctx, SupportedFeatures, state, classes, slices, node, claims)
			if err := lines.Encode(line); err != nil {
				t.Fatal(err)
			}
		}
		return recorder{allocator, write}, nil
	}
	allocatortesting.TestAllocator(t, SupportedFeatures, newAllocator)
	allocatortesting.TestLexicographicalAllocator(t, SupportedFeatures, newAllocator)
}

// byDefault has what is on in Kubernetes 1.37. The rest is alpha.
var byDefault = Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

func answer(ctx context.Context, features Features, state internal.AllocatedState, classes DeviceClassLister, slices []*resourceapi.ResourceSlice, node *v1.Node, claims []*resourceapi.ResourceClaim) (answer, problem string) {
	cache := cel.NewCache(1, cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: features.ListTypeAttributes})
	allocator, err := NewAllocator(ctx, features, state, classes, slices, cache)
	if err != nil {
		return "error", err.Error()
	}
	results, err := allocator.Allocate(ctx, node, claims)
	switch {
	case err != nil:
		return "error", err.Error()
	case results == nil:
		return "no", ""
	default:
		return "yes", ""
	}
}

// nameOf returns the name of the case's test, to which its context logs.
func nameOf(ctx context.Context) string {
	if logger, ok := klog.FromContext(ctx).GetSink().(ktesting.Underlier); ok {
		if test, ok := logger.GetUnderlying().(interface{ Name() string }); ok {
			return test.Name()
		}
	}
	return ""
}

func holders(state internal.AllocatedState) []*resourceapi.ResourceClaim {
	var claims []*resourceapi.ResourceClaim
	hold := func(device internal.DeviceID, share *types.UID, consumed internal.ConsumedCapacity) {
		result := resourceapi.DeviceRequestAllocationResult{
			Driver: device.Driver.String(), Pool: device.Pool.String(), Device: device.Device.String(), ShareID: share,
		}
		if share != nil {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		for name, amount := range consumed {
			result.ConsumedCapacity[name] = *amount
		}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "holder-of-" + result.Device}}
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{result}
		claims = append(claims, claim)
	}
	for device := range state.AllocatedDevices {
		hold(device, nil, nil)
	}
	// What all shares of a device consume, as one share.
	share := types.UID("shares")
	shared := map[internal.DeviceID]internal.ConsumedCapacity{}
	for device := range state.AllocatedSharedDeviceIDs {
		shared[device.GetDeviceID()] = nil
	}
	for device, consumed := range state.AggregatedCapacity {
		shared[device] = consumed
	}
	for device, consumed := range shared {
		hold(device, &share, consumed)
	}
	return claims
}
